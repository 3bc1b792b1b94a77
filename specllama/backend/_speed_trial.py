"""A trial (see `trial`): are our products of one type of weights faster than llama.cpp's own on this machine?

The trial is run as `python -m specllama.backend._speed_trial LIBRARY INSTRUCTION_SET TYPE`. It needs no model.
"""

from __future__ import annotations

import array
import ctypes
import os
import sys
import time
from collections.abc import Callable

from specllama import _core

from .ggml import CpuBackend
from .ggml_products import THREADS, Products, silence
from .kernels import offer_to, packing

_INPUTS, _OUTPUTS = 2048, 4096
_STRIP = 64  # outputs that are quantized; the others are the same bytes again
_BYTES = 64 << 20  # of weights: a decode reads more than caches hold
_COLUMNS = (1, 2, 4, 8)  # tokens in a batch
_REPEATS, _SECONDS = 5, 0.5  # of which the shortest counts, because another program may hold up some; begun so early


class _Batches(Products):
    """Products of many matrices with the same columns, one after the other, as a model's layers compute them."""

    def __init__(self, cpu: CpuBackend, number: int) -> None:
        super().__init__(cpu, _INPUTS, _STRIP, max(_COLUMNS))
        self._number = number
        strip = self.quantized(number)
        self._bytes = array.array("B", strip.tobytes() * (_OUTPUTS // _STRIP))
        self._threads = min(THREADS, os.cpu_count() or 1)

    def made(self, place: int | None) -> Callable[[int], float] | None:
        """What measures the seconds of a batch of so many columns; None if weights of this type do not go there.

        Args:
            place: the buffer type that the weights lie in; None for ggml's plain layout.
        """
        arena = self._arena()
        count = -(-_BYTES // len(self._bytes))
        weights = [self._new_matrix(arena, self._number, _INPUTS, _OUTPUTS) for _ in range(count)]
        self._require(self._allocate(arena, place or self._plain))
        graphs = {}
        for columns in _COLUMNS:
            arena = self._arena()
            inputs = self._new_matrix(arena, 0, _INPUTS, columns)
            products = [self._mul_mat(arena, one, inputs) for one in weights]
            self._require(self._allocate(arena, self._plain))
            if not self._supports(self._device, products[0]):
                return None
            self._fill(inputs, self._inputs[: _INPUTS * columns])
            graphs[columns] = self._new_graph(arena)
            for product in products:
                self._expand(graphs[columns], product)
        for one in weights:
            self._fill(one, self._bytes)

        def seconds(columns: int) -> float:
            self._use_threads(self._backend, self._threads)
            begun = time.perf_counter()
            self._computes(graphs[columns])
            return time.perf_counter() - begun

        return seconds


def main(library: str, instruction_set: str, kind: str) -> str:
    """Measure both, by turns. Returns why the kernels must not be used for this type; empty if they may."""
    cpu = CpuBackend(ctypes.CDLL(library))
    silence(cpu)
    place = offer_to(cpu, instruction_set).address
    batches = _Batches(cpu, _core.quantized_types()[kind].number)
    with packing([kind]):
        ours = batches.made(place)
    theirs = batches.made(place) or batches.made(None)
    if ours is None or theirs is None:
        return f"{kind} is not multiplied"
    least = {(way, columns): float("inf") for way in (ours, theirs) for columns in _COLUMNS}
    begun = time.perf_counter()
    for number in range(_REPEATS):
        if number and time.perf_counter() - begun > _SECONDS:
            break
        for way, columns in least:
            least[way, columns] = min(least[way, columns], way(columns))
    total = {way: sum(least[way, columns] for columns in _COLUMNS) for way in (ours, theirs)}
    share = total[theirs] / total[ours]
    return "" if share >= 1.0 else f"llama.cpp's own products of {kind} take {share:.2f} of the time"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) or None)
