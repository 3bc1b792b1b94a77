"""How `make install` has llama.cpp built: without AMX where the compiler gets it wrong, else as the user says."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "cmake_args.py"
NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
X86 = "x86_64"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cmake_args", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


Compiler = Callable[..., str]


@pytest.fixture
def compiler(tmp_path: Path) -> Compiler:
    """Writes a program in the place of a compiler, which prints this for assembly."""
    if sys.platform == "win32":
        pytest.skip("needs programs that are scripts")

    def write(name: str, assembly: str, *, knows_flags: bool = True) -> str:
        path = tmp_path / name
        refusal = "" if knows_flags else 'case "$*" in *-mno-amx*) exit 1;; esac\n'
        path.write_text(f"#!/bin/sh\n{refusal}cat >/dev/null\nprintf '%s\\n' {shlex.quote(assembly)}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return write


WRONG = "vpxor; vmovdqa; movb $1; ldtilecfg -64(%rsp)"
RIGHT = "movzbl specllama_number_of_rows(%rip), %eax; movb %al, -16(%rsp); ldtilecfg -64(%rsp)"


def environment(cxx: str, cmake_args: str | None = None, **others: str) -> dict[str, str]:
    given = {} if cmake_args is None else {"CMAKE_ARGS": cmake_args}
    return {"CXX": cxx, "CC": cxx, **given, **others}


def test_amx_is_left_out_where_the_compiler_is_wrong(script: ModuleType, compiler: Compiler) -> None:
    found = script.cmake_args(environment(compiler("c++", WRONG)), X86)
    assert shlex.split(found) == [f"-DCMAKE_CXX_FLAGS={NO_AMX}", f"-DCMAKE_C_FLAGS={NO_AMX}"]


@pytest.mark.parametrize("text", ["", "-DGGML_CUDA=on", "  -DX='a b'   -DY=2 ", "-DX='unbalanced"])
def test_nothing_changes_where_it_is_right(script: ModuleType, compiler: Compiler, text: str) -> None:
    right = environment(compiler("c++", RIGHT), text)
    assert script.cmake_args(right, X86) == text
    for machine in ("aarch64", "arm64", "ppc64le"):
        assert script.cmake_args(environment(compiler("wrong", WRONG), text), machine) == text
    assert script.cmake_args(environment("/nowhere/c++", text), X86) == text
    assert script.cmake_args(environment(compiler("mute", ""), text), X86) == text


def test_a_compiler_that_fails_is_not_wrong(script: ModuleType, tmp_path: Path, compiler: Compiler) -> None:
    path = Path(compiler("c++", WRONG))
    path.write_text(path.read_text() + "exit 1\n")
    assert script.cmake_args(environment(str(path)), X86) == ""


@pytest.mark.parametrize(
    ("text", "cxx", "c"),
    [
        ("-DCMAKE_CXX_FLAGS=-g", f"-g {NO_AMX}", NO_AMX),
        ("-DCMAKE_CXX_FLAGS:STRING='-g -DX=\"a  b\"'", f'-g -DX="a  b" {NO_AMX}', NO_AMX),
        ("-D CMAKE_CXX_FLAGS=-g -DCMAKE_C_FLAGS='-O1 -g'", f"-g {NO_AMX}", f"-O1 -g {NO_AMX}"),
        ("-DCMAKE_CXX_FLAGS=-g -DCMAKE_CXX_FLAGS=-g3", f"-g3 {NO_AMX}", NO_AMX),
        ("-DCMAKE_CXX_FLAGS=-mno-amx-int8", "-mno-amx-int8 -mno-amx-tile -mno-amx-bf16", NO_AMX),
    ],
)
def test_flags_of_the_user_stay(script: ModuleType, compiler: Compiler, text: str, cxx: str, c: str) -> None:
    text = f"-DGGML_BLAS=ON {text} -DLAST='x;y z'"
    arguments = shlex.split(script.cmake_args(environment(compiler("c++", WRONG), text), X86))
    assert arguments[: len(shlex.split(text))] == shlex.split(text)
    assert script.given(arguments, "CMAKE_CXX_FLAGS") == cxx
    assert script.given(arguments, "CMAKE_C_FLAGS") == c


def test_those_of_the_environment_stay_too(script: ModuleType, compiler: Compiler) -> None:
    """CMake takes CXXFLAGS only where -DCMAKE_CXX_FLAGS is not given."""
    wrong = compiler("c++", WRONG)
    found = script.cmake_args(environment(wrong, "-DCMAKE_C_FLAGS=-O1", CFLAGS="-g", CXXFLAGS="-g3"), X86)
    assert script.given(shlex.split(found), "CMAKE_CXX_FLAGS") == f"-g3 {NO_AMX}"
    assert script.given(shlex.split(found), "CMAKE_C_FLAGS") == f"-O1 {NO_AMX}"


def test_it_is_done_once(script: ModuleType, compiler: Compiler) -> None:
    wrong = compiler("c++", WRONG)
    first = script.cmake_args(environment(wrong, "-DGGML_BLAS=ON"), X86)
    assert script.cmake_args(environment(wrong, first), X86) == first


def test_the_compiler_that_cmake_takes_is_asked(script: ModuleType, compiler: Compiler) -> None:
    right, wrong = compiler("right", RIGHT), compiler("wrong", WRONG)
    assert NO_AMX in script.cmake_args(environment(right, f"-DCMAKE_CXX_COMPILER={wrong}"), X86)
    assert NO_AMX not in script.cmake_args(environment(wrong, f"-DCMAKE_CXX_COMPILER:PATH={right}"), X86)
    assert NO_AMX in script.cmake_args(environment(f"env {wrong}"), X86)


def test_a_compiler_that_does_not_know_the_flags_is_not_given_them(script: ModuleType, compiler: Compiler) -> None:
    found = script.cmake_args({"CXX": compiler("c++", WRONG), "CC": compiler("cc", "", knows_flags=False)}, X86)
    assert shlex.split(found) == [f"-DCMAKE_CXX_FLAGS={NO_AMX}"]


def test_the_script_prints_them(compiler: Compiler) -> None:
    def printed(cxx: str, text: str) -> str:
        given = {**os.environ, "CXX": cxx, "CC": cxx, "CMAKE_ARGS": text}
        return subprocess.run(
            [sys.executable, str(SCRIPT), "--whole"], env=given, capture_output=True, text=True, check=True
        ).stdout

    assert printed(compiler("right", RIGHT), "-DX=1") == "-DX=1"
    if platform.machine().lower() in ("x86_64", "amd64"):
        assert printed(compiler("wrong", WRONG), "-DX=1").count(NO_AMX) == 2


@pytest.mark.parametrize("name", ["g++", "clang++"])
def test_real_compilers(script: ModuleType, name: str) -> None:
    """GCC 12 is wrong, and no Clang is. What is said of others is what is in their assembly."""
    if platform.machine().lower() not in ("x86_64", "amd64") or shutil.which(name) is None:
        pytest.skip(f"{name} for x86 is not here")
    version = subprocess.run([name, "-dumpversion"], capture_output=True, text=True, check=True).stdout
    macros = subprocess.run([name, "-dM", "-E", "-x", "c++", os.devnull], capture_output=True, text=True, check=True)
    is_clang = "__clang__" in macros.stdout
    drops = script.drops_tiles([name])
    if is_clang:
        assert not drops
    elif re.match(r"12\b", version):
        assert drops


def test_make_install_uses_them() -> None:
    makefile = (SCRIPT.parent.parent / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"CMAKE_ARGS=.*scripts/cmake_args\.py .*\)\" \$\(PIP\) install specllama", makefile)


def test_what_no_part_of_llama_cpp_python_uses_is_left_out(script: ModuleType) -> None:
    (added,) = shlex.split(script.without_programs(""))
    name, path = added.split("=")
    assert name == f"-D{script.HOOK}"
    assert "LLAMA_BUILD_COMMON OFF" in Path(path).read_text(encoding="utf-8")
    assert script.without_programs("-DX='a b'") == f"-DX='a b' {added}"


@pytest.mark.parametrize(
    "text", ["-DLLAMA_BUILD_COMMON=ON", "-D CMAKE_PROJECT_llama.cpp_INCLUDE=mine", "-DX='unbalanced"]
)
def test_who_says_something_of_it_is_obeyed(script: ModuleType, text: str) -> None:
    assert script.without_programs(text) == text


def test_a_folder_with_blanks_is_one_argument(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "PROJECT", Path("/a b/c.cmake"))
    assert shlex.split(script.without_programs("-DX=1")) == ["-DX=1", f"-D{script.HOOK}=/a b/c.cmake"]
