"""Estimates what products take on ARM processors that we do not have: our kernels' beside llama.cpp's own.

A product of 16 rows of 1024 values is emulated, and the instructions that it executes are written down. llvm-mca says
how many cycles a processor needs for them, by the tables of LLVM's compiler. Memory is not modelled: the weights count
as being in the first-level cache. Nothing is measured, so this shows where a kernel would be slow, and no more.

LLAMA_CPP is the folder of llama.cpp in a source archive of llama-cpp-python. It takes ten minutes.
Debian: apt-get install g++-aarch64-linux-gnu qemu-user llvm-22
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import recorded

ROOT = Path(__file__).parents[1]
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
SETS = {"dotprod": "armv8.2-a+dotprod", "i8mm": "armv8.2-a+dotprod+i8mm"}
OURS = "dotprod"  # the set that our kernels take first
# What llama.cpp takes there. Apple's processors share one table of LLVM's. Cortex-A76 is the sibling of Neoverse N1,
# -X1 of V1, -X3 of V2.
PROCESSORS = {
    "apple-m1": "dotprod",
    "apple-m4": "i8mm",
    "neoverse-n1": "dotprod",
    "neoverse-v1": "i8mm",
    "neoverse-v2": "i8mm",
}
TYPES = ("Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4")
COLUMNS = (1, 2, 4, 8)
_BRANCH = re.compile(r"(b|bl|br|blr|ret|cbn?z|tbn?z|b\.\w+)\b")
_ITERATIONS = 10  # of the whole product, so that its beginning and end do not count for much


def compiled(llama_cpp: Path, folder: Path) -> Path:
    """The program scripts/arm_products.cpp, with llama.cpp's products beside ours."""
    ggml, kernels = llama_cpp / "ggml", ROOT / "cpp" / "kernels"
    include = [f"-I{ggml / part}" for part in ("include", "src", "src/ggml-cpu")]
    ours = [
        "-ffp-contract=off",
        "-fno-math-errno",
        "-fno-trapping-math",
        "-DSPECLLAMA_ARM_KERNELS",
        f"-I{ROOT / 'cpp'}",
    ]
    theirs = ggml / "src" / "ggml-cpu" / "arch" / "arm" / "repack.cpp"
    made = [
        _compiled(theirs, folder, f"-march={SETS['i8mm']}+fp16", *include),
        *(_compiled(kernels / f"neon_{name}.cpp", folder, f"-march={march}", *ours) for name, march in SETS.items()),
        *(_compiled(kernels / f"{name}.cpp", folder, *ours) for name in ("block", "activations", "grids")),
        _compiled(ROOT / "scripts" / "arm_products.cpp", folder, *ours),
    ]
    program = folder / "arm_products"
    # What llama.cpp's file calls of other files is not called here.
    subprocess.run([COMPILER, "-static", *made, "-Wl,--unresolved-symbols=ignore-all", "-o", program], check=True)
    return program


def _compiled(source: Path, folder: Path, *options: str) -> Path:
    made = folder / f"{source.stem}.o"
    subprocess.run([COMPILER, "-std=c++17", "-O3", *options, "-c", source, "-o", made], check=True)
    return made


def disassembled(program: Path) -> dict[int, str]:
    """The instructions of a program, by their addresses."""
    command = ["llvm-objdump-22", "-d", "--no-show-raw-insn", "--mattr=+dotprod,+i8mm,+fullfp16", program]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.finditer(r"^\s*([0-9a-f]+):\s+(.+?)\s*(?://.*|<.*)?$", said, re.MULTILINE)
    return {int(one[1], 16): one[2] for one in found}


def executed(program: Path, folder: Path, *arguments: str) -> Iterator[int]:
    """The addresses that the program executes between its two marks, in their order."""
    log = folder / "log"
    command = [EMULATOR, "-cpu", "max", "-singlestep", "-d", "exec,nochain", "-D", log, program, *arguments]
    subprocess.run(command, check=True)
    is_product = False
    for line in log.read_text().splitlines():
        *_, where, function = line.split()
        if function == "specllama_begin":
            is_product = True
        elif function == "specllama_end":
            return
        elif is_product:
            yield int(where.split("/")[1], 16)


def straight(instructions: Sequence[str]) -> list[str]:
    """The instructions as a block without branches, for llvm-mca."""
    kept = [one for one in instructions if not _BRANCH.match(one)]
    kept = [re.sub(r"^adrp?\s+(\w+),.*", r"mov \1, #0", one) for one in kept]
    return [re.sub(r"^(ldr\s+\w+), 0x.*", r"\1, [sp]", one) for one in kept]


def cycles(instructions: Sequence[str], processor: str) -> float:
    """How many cycles the processor takes for the instructions, by LLVM's tables."""
    command = ["llvm-mca-22", "-mtriple=aarch64", f"-mcpu={processor}", "-mattr=+dotprod,+i8mm,+fullfp16"]
    command += [f"-iterations={_ITERATIONS}", "-resource-pressure=false", "-instruction-info=false"]
    said = subprocess.run(command, input="\n".join(instructions), capture_output=True, text=True, check=False)
    total = re.search(r"^Total Cycles:\s+(\d+)", said.stdout, re.MULTILINE)
    if total is None:
        raise RuntimeError(f"llvm-mca says: {said.stderr[:500]}")
    return int(total[1]) / _ITERATIONS


def main() -> None:
    """Print the ratios."""
    parser = recorded.parser(__doc__)
    parser.add_argument("llama_cpp", metavar="LLAMA_CPP", type=Path)
    given = parser.parse_args()
    found: dict[str, dict[str, list[list[float]]]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        program = compiled(given.llama_cpp, folder)
        known = disassembled(program)

        def trace(*arguments: str) -> list[str]:
            return straight([known[at] for at in executed(program, folder, *arguments)])

        for kind in TYPES:
            found[kind] = {name: [] for name in PROCESSORS}
            for columns in map(str, COLUMNS):
                ours = trace("ours", OURS, kind, columns)
                theirs = {name: trace("theirs", name, kind, columns) for name in SETS}
                for processor, has in PROCESSORS.items():
                    found[kind][processor].append([cycles(ours, processor), cycles(theirs[has], processor)])
            print(kind, {name: [f"{b / a:.2f}" for a, b in pairs] for name, pairs in found[kind].items()})
    if given.record:
        version = subprocess.run([COMPILER, "--version"], capture_output=True, text=True, check=True).stdout
        machine = {"cpu": "tables of llvm-mca 22", "compiler": version.splitlines()[0]}
        recorded.keep(given.record, {"machine": machine, "columns": list(COLUMNS), "types": found})


if __name__ == "__main__":
    main()
