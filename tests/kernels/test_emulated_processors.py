"""The kernels of processors that are not here: cross-compiled, emulated, and compared with plain C++, bit by bit."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from needed import EMULATOR, missing

ROOT = Path(__file__).parents[2]
COMPILER, EMULATED = "aarch64-linux-gnu-g++", "qemu-aarch64"
FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-Wall", "-Wextra", "-Werror", "-static")
PARTS = ("activations", "attention", "block", "instruction_set", "matrix_product", "pack", "plain")

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for command in (COMPILER, EMULATED):
        if shutil.which(command) is None:
            missing(f"{command} is not here (Debian: g++-aarch64-linux-gnu, qemu-user)", EMULATOR)
    path = tmp_path_factory.mktemp("emulated") / "same_bits"
    sources = [ROOT / "cpp" / "kernels" / f"{part}.cpp" for part in (*PARTS, "neon_dotprod")]
    definitions = ("-DSPECLLAMA_ARM_KERNELS", "-march=armv8.2-a+dotprod", f"-I{ROOT / 'cpp'}")
    command = [COMPILER, *FLAGS, *definitions, ROOT / "tests" / "same_bits.cpp", *sources, "-o", path]
    subprocess.run(command, check=True)
    return path


def printed(program: Path, processor: str) -> list[str]:
    done = subprocess.run([EMULATED, "-cpu", processor, program, "10"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_neon_gives_the_bits_of_plain_code(program: Path) -> None:
    name, compared = printed(program, "max")
    assert name == "NEON dotprod"
    assert int(compared.split()[0]) > 6000


def test_a_processor_without_dot_products_is_not_given_them(program: Path) -> None:
    assert printed(program, "cortex-a53") == ["0 comparisons"]
