"""The kernels on what is not here: cross-compiled, run by an emulator or Wine, and compared with plain C++, bit by bit.

`scripts/other_systems.sh` does the same with a llama.cpp for Windows.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from needed import EMULATOR, missing

from specllama.backend.cpu import cpu_flags

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "cpp" / "kernels"
FLAGS = (
    "-std=c++17",
    "-O1",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-Wall",
    "-Wextra",
    "-Werror",
)
PARTS = ("activations", "attention", "block", "grids", "instruction_set", "matrix_product", "pack")

ARM_COMPILER, EMULATED = "aarch64-linux-gnu-g++", "qemu-aarch64"
PROCESSORS = {"max": ["NEON dotprod", "NEON i8mm"], "neoverse-n1": ["NEON dotprod"], "cortex-a53": []}
ARM_SETS = {
    "neon_dotprod": ["-march=armv8.2-a+dotprod"],
    "neon_i8mm": ["-march=armv8.2-a+dotprod+i8mm"],
    "plain": [],
}

WINDOWS_COMPILER, WINE = "x86_64-w64-mingw32-g++-posix", "wine64"
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
WINDOWS_SETS = {
    "avx2": AVX2,
    "avx_vnni": [*AVX2, "-mavxvnni"],
    "avx512_vnni": [*AVX2, *(f"-mavx512{part}" for part in ("f", "bw", "dq", "vl", "vnni"))],
    "plain": ["-mfma"],  # MinGW's own fmaf is not rounded correctly
}

pytestmark = pytest.mark.long


def found(command: str, packages: str) -> str:
    path = shutil.which(command, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/lib/wine"]))
    return path or missing(f"{command} is not here (Debian: {packages})", EMULATOR)


def compiled(folder: Path, compiler: str, flags: list[str], sets: dict[str, list[str]]) -> Path:
    """The program of tests/same_bits.cpp for another system."""
    compile_ = [compiler, *FLAGS, *flags, f"-I{ROOT / 'cpp'}"]
    for name, processor in sets.items():
        source, made = KERNELS / f"{name}.cpp", folder / f"{name}.o"
        subprocess.run([*compile_, *processor, "-c", source, "-o", made], check=True)
    sources = [ROOT / "tests" / "same_bits.cpp", *(KERNELS / f"{part}.cpp" for part in PARTS)]
    command = [*compile_, "-static", *sources, *(folder / f"{name}.o" for name in sets), "-o", folder / "same_bits.exe"]
    subprocess.run(command, check=True)
    return folder / "same_bits.exe"


def sets_compared(command: list[str | Path], **environment: str) -> list[str]:
    """The instruction sets that a program compares with plain C++, in enough cases."""
    variables = {**os.environ, **environment}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    assert done.returncode == 0, done.stdout + done.stderr
    *names, compared = done.stdout.splitlines()
    assert int(compared.split()[0]) >= 6000 * len(names)
    return names


def test_a_processor_is_given_what_it_has_with_the_bits_of_plain_code(tmp_path: Path) -> None:
    packages = "g++-aarch64-linux-gnu, qemu-user"
    compiler, emulator = found(ARM_COMPILER, packages), found(EMULATED, packages)
    program = compiled(tmp_path, compiler, ["-DSPECLLAMA_ARM_KERNELS"], ARM_SETS)
    for processor, names in PROCESSORS.items():
        assert sets_compared([emulator, "-cpu", processor, program, "5"]) == names


def test_windows_is_given_the_bits_of_plain_code(tmp_path: Path) -> None:
    packages = "g++-mingw-w64-x86-64-posix, wine64"
    compiler, wine = found(WINDOWS_COMPILER, packages), found(WINE, packages)
    flags = ["-DSPECLLAMA_X86_KERNELS", "-Wa,-muse-unaligned-vector-move"]
    program = compiled(tmp_path, compiler, flags, WINDOWS_SETS)
    names = sets_compared([wine, program, "5"], WINEPREFIX=str(tmp_path / "wine"), WINEDEBUG="-all")
    assert ("AVX2" in names) == ("avx2" in cpu_flags())
