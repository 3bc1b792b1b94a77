"""Updates of recurrent states by ggml's CPU backend, without a model, for the trial of our kernels for them."""

from __future__ import annotations

import array
import ctypes
import dataclasses
import math
from collections.abc import Sequence

from .ggml import CpuBackend
from .ggml_products import THREADS, Products, numbers

_F32, _I32 = 0, 26
_INPUTS, _HEADS, _GROUPS, _LENGTH = 256, 16, 4, 32
_ROWS = {"GATED_DELTA_NET": _LENGTH, "SSM_SCAN": 22}  # of a head's state; those of a scan fill no whole group
_TOKENS = 20  # the most tokens of a text


@dataclasses.dataclass(frozen=True)
class Batch:
    """Tokens of some texts.

    Attributes:
        tokens: how many each text has.
        states: the row of the cache from which each text's state is read.
        cells: how many texts the cache has room for. Its rows are the last states of all texts, then the states one
            token before, and so on.
        slots: how many states of each text the cache keeps.
        moved: the rows of further states, which are moved to the rows behind those of the texts.
    """

    tokens: int
    states: Sequence[int]
    cells: int
    slots: int
    moved: Sequence[int] = ()


class States(Products):
    """Delta nets and scans, of which one input is made as in a model: as the product of weights with columns."""

    def __init__(self, cpu: CpuBackend) -> None:
        """Args: cpu: the CPU backend.

        Raises:
            LookupError: this ggml lacks one of the operations.
        """
        super().__init__(cpu, _INPUTS, _HEADS, _TOKENS)
        address, number, long = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
        size, real = ctypes.c_size_t, ctypes.c_float
        name = cpu.function
        self._new_tensor = name("ggml_new_tensor_4d", address, address, number, *[long] * 4)
        self._reshape = name("ggml_reshape_4d", address, address, address, *[long] * 4)
        self._line = name("ggml_view_1d", address, address, address, long, size)
        self._cube = name("ggml_view_3d", address, address, address, *[long] * 3, *[size] * 3)
        self._scale = name("ggml_scale", address, address, address, real)
        self._get_rows = name("ggml_get_rows", address, address, address, address)
        self._copy = name("ggml_cpy", address, address, address, address)
        self._operations = {
            "GATED_DELTA_NET": name("ggml_gated_delta_net", address, *[address] * 7, long),
            "SSM_SCAN": name("ggml_ssm_scan", address, *[address] * 8, long),
        }

    def updated(
        self, operation: str, kind: int, batch: Batch, buffer_type: int | None
    ) -> tuple[array.array[float], array.array[float]] | None:
        """The results of the tokens, and the cache afterwards; None if this ggml describes the operation otherwise.

        Args:
            operation: ``GATED_DELTA_NET`` or ``SSM_SCAN``.
            kind: the weights' type in ggml.h.
            batch: the tokens.
            buffer_type: the buffer type that the weights lie in; None for ggml's plain layout.
        """
        weights_arena, arena = self._arena(), self._arena()
        weights = self._new_matrix(weights_arena, kind, _INPUTS, _HEADS)
        self._require(self._allocate(weights_arena, buffer_type or self._plain))
        texts, rows = len(batch.states), _ROWS[operation]
        shape = (_HEADS, batch.tokens, texts)
        inputs = self._new_matrix(arena, _F32, _INPUTS, batch.tokens * texts)
        cache = self._new_matrix(arena, _F32, _LENGTH * rows * _HEADS, batch.cells * batch.slots)
        places = self._new_matrix(arena, _I32, texts + len(batch.moved), 1)
        product = self._scale(arena, self._mul_mat(arena, weights, inputs), 0.05)
        keys, queries = (self._new_tensor(arena, _F32, _LENGTH, _GROUPS, *shape[1:]) for _ in range(2))
        values = self._new_tensor(arena, _F32, rows, *shape)
        others = self._new_tensor(arena, _F32, 1, *shape)  # the rates of a delta net, the decays of a scan
        chosen = self._line(arena, places, texts, 0)
        if operation == "SSM_SCAN":
            states = self._reshape(arena, cache, _LENGTH, rows, _HEADS, batch.cells * batch.slots)
            decays = self._reshape(arena, self._line(arena, others, _HEADS, 0), 1, _HEADS, 1, 1)
            given = [states, values, self._reshape(arena, product, *shape, 1), decays, keys, queries, chosen]
        else:
            gathered = self._get_rows(arena, cache, chosen)
            states = self._reshape(arena, gathered, _LENGTH, rows, _HEADS, texts)
            given = [queries, keys, values, self._reshape(arena, product, 1, *shape), others, states]
        result = self._operations[operation](arena, *given, batch.slots)
        num_results = rows * math.prod(shape)
        if self._num_bytes(result) != 4 * (num_results + _LENGTH * rows * _HEADS * texts * batch.slots):
            return None
        first = result if operation == "SSM_SCAN" else gathered  # as llama.cpp orders them
        order = [first, *self._moved(arena, cache, places, batch), self._copied(arena, cache, result, batch, rows)]
        self._require(self._allocate(arena, self._plain))
        self._fill(weights, self.quantized(kind))
        self._fill(inputs, self._inputs[: _INPUTS * batch.tokens * texts])
        self._fill(places, array.array("i", [*batch.states, *batch.moved]))
        for step, tensor in enumerate((cache, values, keys, queries)):
            count = self._num_bytes(tensor) // 4
            self._fill(tensor, array.array("f", (0.3 * x for x in numbers(count, 7901 + 18 * step))))
        sign = -0.4 if operation == "SSM_SCAN" else 0.4
        self._fill(others, array.array("f", (sign * abs(x) for x in numbers(math.prod(shape), 6007))))
        self._run(arena, [*order, result], THREADS if buffer_type else 1)
        return self._content(result)[:num_results], self._content(cache)

    def _moved(self, arena: int, cache: int, places: int, batch: Batch) -> list[int]:
        """The copies of further states to the rows behind those of the texts."""
        if not batch.moved:
            return []
        texts, bytes_of_row = len(batch.states), self._num_bytes(cache) // (batch.cells * batch.slots)
        further = self._line(arena, places, len(batch.moved), 4 * texts)
        sizes = (bytes_of_row // 4, len(batch.moved), 1, bytes_of_row, 0)
        behind = self._cube(arena, cache, *sizes, bytes_of_row * texts)
        return [self._copy(arena, self._get_rows(arena, cache, further), behind)]

    def _copied(self, arena: int, cache: int, result: int, batch: Batch, rows: int) -> int:
        """The copies of the new states, which stand behind the results, to the first rows of the cache."""
        size, texts, written = _LENGTH * rows * _HEADS, len(batch.states), min(batch.tokens, batch.slots)
        start = 4 * rows * _HEADS * batch.tokens * texts
        made = self._cube(arena, result, size, texts, written, 4 * size, 4 * size * texts, start)
        return int(
            self._copy(arena, made, self._cube(arena, cache, size, texts, written, 4 * size, 4 * size * batch.cells, 0))
        )
