"""What products of one type of weights take, of as many matrices as a model's layers have."""

from __future__ import annotations

import array
import os
import time
from collections.abc import Callable, Sequence

from .ggml import CpuBackend
from .ggml_products import THREADS, Products

_INPUTS, _OUTPUTS = 2048, 4096
_STRIP = 64  # outputs that are quantized; the others are the same bytes again
_BYTES = 64 << 20  # of weights: a decode reads more than caches hold


class ProductTimes(Products):
    """Products of many matrices with the same columns.

    Attributes:
        num_bytes: the bytes of weights.
    """

    def __init__(self, cpu: CpuBackend, number: int, columns: Sequence[int], num_bytes: int = _BYTES) -> None:
        """Quantize some weights, all others are these again.

        Args:
            cpu: ggml's CPU backend.
            number: the weights' type in ggml.h.
            columns: the sizes of batches.
            num_bytes: about how many bytes of weights.
        """
        super().__init__(cpu, _INPUTS, _STRIP, max(columns))
        self._number, self._columns = number, columns
        strip = self.quantized(number)
        self._bytes = array.array("B", strip.tobytes() * (_OUTPUTS // _STRIP))
        self._count = -(-num_bytes // len(self._bytes))
        self.num_bytes = self._count * len(self._bytes)
        self._threads = min(THREADS, os.cpu_count() or 1)

    def made(self, place: int | None) -> Callable[[int], float] | None:
        """What measures the seconds of a batch of so many columns; None if weights of this type do not go there.

        Args:
            place: the buffer type that the weights lie in; None for ggml's plain layout.
        """
        arena = self._arena()
        weights = [self._new_matrix(arena, self._number, _INPUTS, _OUTPUTS) for _ in range(self._count)]
        self._require(self._allocate(arena, place or self._plain))
        graphs = {}
        for columns in self._columns:
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
