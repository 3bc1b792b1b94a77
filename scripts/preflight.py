"""Says, before anything is installed, whether this machine can build specllama. Runs on any Python, however old."""

from __future__ import print_function

import os
import subprocess
import sys
import sysconfig
import tempfile

PROGRAM = """
#include <optional>
int main() { return std::optional<int>{0}.value(); }
"""


def fail(message):
    sys.exit("specllama: " + message)


def check_python():
    if sys.version_info < (3, 10):
        fail(
            "Python 3.10 or newer is needed, but %s is %s. Name another one: make PYTHON=python3.12 ..."
            % (sys.executable, sys.version.split()[0])
        )
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        fail(
            "this Python (%s) cannot create virtual environments. On Debian and Ubuntu: "
            "apt-get install python%d.%d-venv" % ((sys.executable,) + sys.version_info[:2])
        )
    header = os.path.join(sysconfig.get_paths()["include"], "Python.h")
    if not os.path.exists(header):
        fail(
            "this Python (%s) has no %s, which the extension is compiled against. On Debian and Ubuntu: "
            "apt-get install python%d.%d-dev" % ((sys.executable, header) + sys.version_info[:2])
        )


def check_compiler():
    import shutil

    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    found = [name for name in names if shutil.which(name.split()[0])]
    if not found:
        fail(
            "no C++ compiler (looked for %s). On Debian and Ubuntu: apt-get install g++; on macOS: "
            "xcode-select --install; or name one: CXX=... make ..." % ", ".join(names)
        )
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "check.cpp")
        with open(source, "w") as file:
            file.write(PROGRAM)
        command = found[0].split() + ["-std=c++17", source, "-o", os.path.join(folder, "check")]
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if result.returncode:
            fail(
                "%s cannot compile a C++17 program. It says:\n%s\nName another one: CXX=... make ..."
                % (found[0], result.stdout.decode(errors="replace"))
            )


check_python()
check_compiler()
