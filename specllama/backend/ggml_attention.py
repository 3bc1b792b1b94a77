"""Attention by ggml's CPU backend, without a model, for the trial of our attention kernels."""

from __future__ import annotations

import array
import ctypes
import struct
from collections.abc import Iterable

from .ggml import CpuBackend
from .ggml_products import THREADS, Products, numbers

_F32, _F16 = 0, 1
_LENGTH, _HEADS, _CACHE_HEADS = 64, 6, 2  # the length of a head, the heads of queries, and the heads of the cache
_MASK_ROWS = 64  # the rows of the mask; older releases of ggml need at least so many
_MOST_BIAS, _CAP = 8.0, 2.0  # the largest bias of ALiBi, and the cap of scores

PRODUCTS, FLASH, SPECIAL_FLASH = "products with", "flash attention to", "flash attention with ALiBi, cap and sinks to"
WAYS = (FLASH, SPECIAL_FLASH, PRODUCTS)
"""The operations on a cache that are tried, in words for messages."""


class Attention(Products):
    """Attention of queries, which are made as in a model: as the product of weights with columns."""

    NUM_INPUTS = 256

    def __init__(self, cpu: CpuBackend, most_cells: int, most_columns: int) -> None:
        """Args: cpu: the CPU backend; most_cells: the cache's cells; most_columns: the most queries, at most 64."""
        super().__init__(cpu, self.NUM_INPUTS, _LENGTH * _HEADS, most_columns)
        address, number, long, real = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float
        self._new_cube = cpu.function("ggml_new_tensor_3d", address, address, number, long, long, long)
        self._reshape = cpu.function("ggml_reshape_3d", address, address, address, long, long, long)
        self._permute = cpu.function("ggml_permute", address, address, address, *[number] * 4)
        self._attend = cpu.function("ggml_flash_attn_ext", address, *[address] * 5, real, real, real)
        self._add_sinks = cpu.function("ggml_flash_attn_ext_add_sinks", None, address, address)
        self._cache = halves(numbers(2 * most_cells * _CACHE_HEADS * _LENGTH, 7901))

    def attended(self, kind: int, columns: int, buffer_type: int | None, cells: int, way: str) -> list[float]:
        """The results of the queries: of flash attention, or their products with the cache.

        Args:
            kind: the weights' type in ggml.h.
            columns: the number of tokens. The last cells are hidden from each token; each token sees one more cell than
                the token before.
            buffer_type: the buffer type that the weights lie in; None for ggml's plain layout.
            cells: the number of cells of the cache that are used.
            way: one of WAYS.
        """
        weights_arena, arena = self._arena(), self._arena()
        weights = self._new_matrix(weights_arena, kind, self.NUM_INPUTS, _LENGTH * _HEADS)
        self._require(self._allocate(weights_arena, buffer_type or self._plain))
        inputs = self._new_matrix(arena, _F32, self.NUM_INPUTS, columns)
        shape = (_LENGTH, cells, _CACHE_HEADS)
        keys, values = (self._new_cube(arena, _F16, *shape) for _ in range(2))
        mask = self._new_matrix(arena, _F16, cells, _MASK_ROWS)
        product = self._reshape(arena, self._mul_mat(arena, weights, inputs), _LENGTH, _HEADS, columns)
        queries = self._permute(arena, product, 0, 2, 1, 3)
        sinks = self._new_matrix(arena, _F32, _HEADS, 1)
        if way == SPECIAL_FLASH:
            result = self._attend(arena, queries, keys, values, mask, _LENGTH**-0.5, _MOST_BIAS, _CAP)
            self._add_sinks(result, sinks)
        elif way == FLASH:
            result = self._attend(arena, queries, keys, values, mask, _LENGTH**-0.5, 0.0, 0.0)
        else:
            result = self._mul_mat(arena, self._permute(arena, keys, 0, 1, 2, 3), queries)
        self._require(self._allocate(arena, self._plain))
        self._fill(weights, self.quantized(kind))
        self._fill(inputs, self._inputs[: self.NUM_INPUTS * columns])
        size = cells * _CACHE_HEADS * _LENGTH
        self._fill(keys, self._cache[:size])
        self._fill(values, self._cache[-size:])
        self._fill(sinks, array.array("f", range(_HEADS)))
        distance = -1.0 if way == SPECIAL_FLASH else 0.0
        hidden = (
            float("-inf") if cell > cells - 40 + row else distance * (cell % 7)
            for row in range(_MASK_ROWS)
            for cell in range(cells)
        )
        self._fill(mask, halves(hidden))
        found = self._computed(arena, result, THREADS if buffer_type else 1)
        if way != PRODUCTS:
            return list(found)
        # ggml's result is ordered by head, then by token. The returned rows are ordered by token, then by head.
        heads = range(_HEADS)
        rows = [(head * columns + token) * cells for token in range(columns) for head in heads]
        return [number for row in rows for number in found[row : row + cells]]


def halves(values: Iterable[float]) -> array.array[int]:
    """Numbers as float16."""
    given = list(values)
    made = array.array("H")
    made.frombytes(struct.pack(f"={len(given)}e", *given))
    return made
