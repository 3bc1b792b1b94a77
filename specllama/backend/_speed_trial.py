"""A trial (see `trial`): are our products of one type of weights faster than llama.cpp's own on this machine?

The trial is run as `python -m specllama.backend._speed_trial LIBRARY INSTRUCTION_SET TYPE`. It needs no model.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import time

from specllama import _core

from .ggml import CpuBackend
from .ggml_products import silence
from .kernels import offer_to, packing
from .product_times import ProductTimes

_COLUMNS = (1, 2, 4, 8)  # tokens in a batch
_REPEATS, _SECONDS = 5, 0.5  # of which the shortest counts, because another program may hold up some; begun so early
_MOST_SECONDS = 1.0  # before ours are refused, since other programs may have held up ours alone


def main(library: str, instruction_set: str, kind: str) -> str:
    """Measure both, by turns. Returns why the kernels must not be used for this type; empty if they may."""
    cpu = CpuBackend(ctypes.CDLL(library))
    silence(cpu)
    place = offer_to(cpu, instruction_set).address
    times = ProductTimes(cpu, _core.quantized_types()[kind].number, _COLUMNS)
    with packing([kind]):
        ours = times.made(place)
    theirs = times.made(place) or times.made(None)
    if ours is None or theirs is None:
        return f"{kind} is not multiplied"
    least = {(way, columns): float("inf") for way in (ours, theirs) for columns in _COLUMNS}
    begun = time.perf_counter()
    for number in itertools.count(1):
        for way, columns in least:
            least[way, columns] = min(least[way, columns], way(columns))
        total = {way: sum(least[way, columns] for columns in _COLUMNS) for way in (ours, theirs)}
        share, seconds = total[theirs] / total[ours], time.perf_counter() - begun
        if seconds > _MOST_SECONDS or (share >= 1.0 and (number >= _REPEATS or seconds > _SECONDS)):
            break
    return "" if share >= 1.0 else f"llama.cpp's own products of {kind} take {share:.2f} of the time"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) or None)
