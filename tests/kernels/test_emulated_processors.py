"""The kernels of processors that are not here: cross-compiled, emulated, and compared with plain C++, bit by bit."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from needed import EMULATOR, missing

ROOT = Path(__file__).parents[2]
COMPILER, EMULATED = "aarch64-linux-gnu-g++", "qemu-aarch64"
FLAGS = ("-std=c++17", "-O1", "-fno-math-errno", "-fno-trapping-math", "-Wall", "-Wextra", "-Werror")
PROCESSORS = {"max": ["NEON i8mm", "NEON dotprod"], "neoverse-n1": ["NEON dotprod"], "cortex-a53": []}
SETS = {"neon_dotprod": "armv8.2-a+dotprod", "neon_i8mm": "armv8.2-a+dotprod+i8mm"}
PARTS = ("activations", "attention", "block", "grids", "instruction_set", "matrix_product", "pack", "plain")

pytestmark = pytest.mark.long


def compiled(folder: Path) -> Path:
    """The program of tests/same_bits.cpp, for ARM."""
    for command in (COMPILER, EMULATED):
        if shutil.which(command) is None:
            missing(f"{command} is not here (Debian: g++-aarch64-linux-gnu, qemu-user)", EMULATOR)
    compile_ = [COMPILER, *FLAGS, "-DSPECLLAMA_ARM_KERNELS", f"-I{ROOT / 'cpp'}"]
    for name, processor in SETS.items():
        source = ROOT / "cpp" / "kernels" / f"{name}.cpp"
        subprocess.run([*compile_, f"-march={processor}", "-c", source, "-o", folder / f"{name}.o"], check=True)
    sources = [ROOT / "tests" / "same_bits.cpp", *(ROOT / "cpp" / "kernels" / f"{part}.cpp" for part in PARTS)]
    command = [*compile_, "-static", *sources, *(folder / f"{name}.o" for name in SETS), "-o", folder / "same_bits"]
    subprocess.run(command, check=True)
    return folder / "same_bits"


def test_a_processor_is_given_what_it_has_with_the_bits_of_plain_code(tmp_path: Path) -> None:
    program = compiled(tmp_path)
    for processor, names in PROCESSORS.items():
        command = [EMULATED, "-cpu", processor, program, "5"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        *found, compared = done.stdout.splitlines()
        assert found == names
        assert int(compared.split()[0]) >= 6000 * len(names)
