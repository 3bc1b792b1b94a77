"""Measures what products of each type of weights take: by llama.cpp's kernels and by ours, by turns.

Run it on a quiet machine: ``python scripts/types_of_weights.py --record types``. It needs no model, and takes three
minutes on two cores. The shortest of some runs counts, because another program may hold up some.
"""

from __future__ import annotations

import llama_cpp
import recorded

from specllama import _core
from specllama.backend.cpu import cpu_name
from specllama.backend.ggml import CpuBackend
from specllama.backend.ggml_products import THREADS, silence
from specllama.backend.kernels import offer_to, packing
from specllama.backend.product_times import ProductTimes

BATCHES, PROMPT = (1, 2, 4, 8), 512
PROMPT_BYTES = 4 << 20  # of weights
REPEATS = 7


def measured(cpu: CpuBackend, place: int, kind: str, columns: tuple[int, ...], **size: int) -> dict[str, list[float]]:
    """The milliseconds of each batch for a GB of weights, by whose kernels multiply."""
    times = ProductTimes(cpu, _core.quantized_types()[kind].number, columns, **size)
    with packing([kind]):
        ways = {"ours": times.made(place)}
    ways["theirs"] = times.made(place) or times.made(None)
    least = {name: [float("inf")] * len(columns) for name in ways}
    for _ in range(REPEATS):
        for name, way in ways.items():
            assert way is not None
            least[name] = [min(so_far, way(n)) for so_far, n in zip(least[name], columns, strict=True)]
    return {name: [1e3 * seconds * 1e9 / times.num_bytes for seconds in of] for name, of in least.items()}


def main() -> None:
    """Print the ratios."""
    given = recorded.parser(__doc__).parse_args()
    cpu = CpuBackend(llama_cpp.llama_cpp._lib)
    silence(cpu)
    name = _core.instruction_sets()[0]
    made = offer_to(cpu, name)
    found = {}
    for kind in sorted(made.types):
        batches = measured(cpu, made.address, kind, BATCHES)
        prompt = measured(cpu, made.address, kind, (PROMPT,), num_bytes=PROMPT_BYTES)
        found[kind] = {way: [*batches[way], *prompt[way]] for way in batches}
        ratios = (
            f"{theirs / ours:.2f}" for ours, theirs in zip(found[kind]["ours"], found[kind]["theirs"], strict=True)
        )
        print(kind, *ratios)
    if given.record:
        machine = {"cpu": cpu_name(), "llama_cpp_python": llama_cpp.__version__, "kernels": name, "threads": THREADS}
        recorded.keep(given.record, {"machine": machine, "columns": [*BATCHES, PROMPT], "types": found})


if __name__ == "__main__":
    main()
