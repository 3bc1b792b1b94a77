"""Prints CMAKE_ARGS for a quick build of llama-cpp-python that runs on processors with AMX: `make install` uses it.

llama.cpp's library for its own programs, `llama-common`, takes nearly half of the time, and llama-cpp-python uses no
part of it. A line of CMake leaves it out, which llama.cpp's own project reads (llama_cpp_project.cmake), because
llama-cpp-python overrides the option. ``--whole`` leaves it in, for a release that should come to need it.

GCC 12, and others of its age, do not know that `_tile_loadconfig` reads 64 bytes. They drop the stores that fill them,
and the first product of quantized weights ends the process. Whether this compiler is one of them is found by compiling
a few lines, which are not run. If it is, AMX is left out of the build, and whatever else CMAKE_ARGS says stays.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

PROJECT = Path(__file__).with_name("llama_cpp_project.cmake")
HOOK = "CMAKE_PROJECT_llama.cpp_INCLUDE"
FLAGS = ("-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16")
X86 = ("x86_64", "amd64", "i386", "i686", "x86")
NEEDED = "specllama_number_of_rows"
PROGRAM = f"""
#include <immintrin.h>
#include <cstdint>
extern std::uint8_t {NEEDED};
struct Tiles {{
    std::uint8_t palette = 0, start = 0, reserved[14] = {{}};
    std::uint16_t columns[16] = {{}};
    std::uint8_t rows[16] = {{}};
}};
void configure() {{
    alignas(64) Tiles tiles = {{}};
    tiles.palette = 1;
    tiles.rows[0] = {NEEDED};
    _tile_loadconfig(&tiles);
}}
"""


def drops_tiles(compiler: Sequence[str]) -> bool:
    """Whether a C++ compiler drops the stores that fill the tiles' configuration. False for one without AMX."""
    options = ["-std=c++17", "-O3", "-mamx-tile", "-mavx512f", "-x", "c++", "-S", "-o", "-", "-"]
    try:
        done = subprocess.run([*compiler, *options], input=PROGRAM, capture_output=True, text=True, check=False)
    except OSError:
        return False
    return done.returncode == 0 and "ldtilecfg" in done.stdout and NEEDED not in done.stdout


def accepts_flags(compiler: Sequence[str], language: str) -> bool:
    """Whether a compiler knows the flags that leave AMX out."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "empty")
        source.write_text("")
        command = [*compiler, *FLAGS, "-x", language, "-c", str(source), "-o", str(Path(folder, "empty.o"))]
        try:
            return subprocess.run(command, capture_output=True, check=False).returncode == 0
        except OSError:
            return False


def compiler_of(language: str, arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The compiler that CMake takes for C or CXX; empty if there is none."""
    chosen = given(arguments, f"CMAKE_{language}_COMPILER")
    if chosen:
        return [chosen]
    variable, names = {"C": ("CC", ("cc", "gcc", "clang")), "CXX": ("CXX", ("c++", "g++", "clang++"))}[language]
    if environment.get(variable):
        return shlex.split(environment[variable])
    return next(([name] for name in names if shutil.which(name)), [])


def given(arguments: Sequence[str], name: str) -> str | None:
    """The value that -D gives a variable of CMake; the last one counts."""
    found = None
    for argument in joined(arguments):
        definition, _, value = argument.partition("=")
        if definition.removeprefix("-D").partition(":")[0] == name and argument.startswith("-D"):
            found = value
    return found


def joined(arguments: Sequence[str]) -> list[str]:
    """The arguments with `-D NAME=VALUE` written as one."""
    result: list[str] = []
    for argument in arguments:
        if result and result[-1] == "-D":
            result[-1] += argument
        else:
            result.append(argument)
    return result


def without_amx(arguments: Sequence[str], language: str, environment: Mapping[str, str]) -> list[str]:
    """The arguments with `FLAGS` added to the flags that they, or the environment, give a language's compiler."""
    name = f"CMAKE_{language}_FLAGS"
    flags = given(arguments, name)
    if flags is None:  # CMake takes the environment's flags only if -D gives none
        flags = environment.get({"C": "CFLAGS", "CXX": "CXXFLAGS"}[language], "")
    missing = [flag for flag in FLAGS if flag not in flags.split()]
    if not missing:
        return list(arguments)
    return [*arguments, f"-D{name}={' '.join([flags, *missing]).strip()}"]


def cmake_args(environment: Mapping[str, str], machine: str) -> str:
    """The environment's CMAKE_ARGS, with flags that leave AMX out if the compiler needs them."""
    text = environment.get("CMAKE_ARGS", "")
    if machine.lower() not in X86:
        return text
    try:
        arguments = shlex.split(text)
    except ValueError:  # pip says what is wrong with it
        return text
    if not drops_tiles(compiler_of("CXX", arguments, environment)):
        return text
    for language, name in (("CXX", "c++"), ("C", "c")):
        if accepts_flags(compiler_of(language, arguments, environment), name):
            arguments = without_amx(arguments, language, environment)
    return shlex.join(arguments)


def without_programs(text: str) -> str:
    """CMAKE_ARGS that leave out llama.cpp's library for its own programs, unless they say something of that."""
    try:
        arguments = shlex.split(text)
    except ValueError:  # pip says what is wrong with it
        return text
    if given(arguments, HOOK) is not None or given(arguments, "LLAMA_BUILD_COMMON") is not None:
        return text
    return f"{text} {shlex.join([f'-D{HOOK}={PROJECT}'])}".strip()


def main() -> None:
    """Print CMAKE_ARGS. If a build follows, say that AMX is left out."""
    text = cmake_args(os.environ, platform.machine())
    if text != os.environ.get("CMAKE_ARGS", "") and importlib.util.find_spec("llama_cpp") is None:
        sys.stderr.write("This C++ compiler gets AMX code wrong: llama.cpp is built without it (CMAKE_ARGS).\n")
    sys.stdout.write(text if "--whole" in sys.argv[1:] else without_programs(text))


if __name__ == "__main__":
    main()
