"""Matrix products by ggml itself, without a model, for trials of ggml's buffer types.

This module imports neither llama_cpp nor NumPy, which would take longer than the products.
"""

from __future__ import annotations

import array
import ctypes
import random
from collections.abc import Iterator, Mapping, Sequence

from .ggml import CpuBackend

_F32, _I32 = 0, 26
THREADS = 2  # of a product. Several, because with AMX each thread configures tiles of its own
# IQ2_XXS, IQ2_XS, IQ3_XXS, IQ3_S and IQ2_S: to quantize them takes llama.cpp seconds, but any bytes are such weights.
_MADE_UP = (16, 17, 18, 21, 22)
_OF_BLOCK, _SCALE = 256, (0x00, 0x20)  # their values in a block, and its scale, which comes first: the float16 of 2^-7
_ARENA = 1 << 20  # bytes of an arena for the descriptions of tensors and the graph
_LogCallback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
# Drops ggml's messages, because `trial` searches the output for the reason of a crash. Assertions are still printed.
_SILENCE = _LogCallback(lambda level, text, data: None)


class _InitParams(ctypes.Structure):
    """ggml's struct ggml_init_params."""

    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


class Products:
    """Products of weights with columns, by ggml's CPU backend."""

    def __init__(
        self,
        cpu: CpuBackend,
        num_inputs: int,
        num_outputs: int,
        most_columns: int,
        *,
        weights: array.array[float] | None = None,
        inputs: array.array[float] | None = None,
    ) -> None:
        """Prepare the products.

        Args:
            cpu: the CPU backend.
            num_inputs: the inputs of the weights.
            num_outputs: the outputs of the weights.
            most_columns: the most columns of any product.
            weights: [num_outputs, num_inputs], before they are quantized; None for made-up numbers.
            inputs: [most_columns, num_inputs]; None for made-up numbers.
        """
        address, number, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
        long, name = ctypes.c_int64, cpu.function
        self._init = name("ggml_init", address, _InitParams)
        self._new_matrix = name("ggml_new_tensor_2d", address, address, number, long, long)
        self._new_stack = name("ggml_new_tensor_3d", address, address, number, long, long, long)
        self._mul_mat = name("ggml_mul_mat", address, address, address, address)
        self._mul_mat_id = name("ggml_mul_mat_id", address, address, address, address, address)
        self._new_graph = name("ggml_new_graph", address, address)
        self._expand = name("ggml_build_forward_expand", None, address, address)
        self._row_size = name("ggml_row_size", size, number, long)
        self._num_bytes = name("ggml_nbytes", size, address)
        self._quantize = name(
            "ggml_quantize_chunk", size, number, address, address, long, long, long, ctypes.POINTER(ctypes.c_float)
        )
        self._allocate = name("ggml_backend_alloc_ctx_tensors_from_buft", address, address, address)
        self._set = name("ggml_backend_tensor_set", None, address, address, size, size)
        self._get = name("ggml_backend_tensor_get", None, address, address, size, size)
        self._supports = name("ggml_backend_dev_supports_op", ctypes.c_bool, address, address)
        self._compute = name("ggml_backend_graph_compute", number, address, address)
        self._plain = name("ggml_backend_dev_buffer_type", address, address)(cpu.device)
        self._backend = name("ggml_backend_dev_init", address, address, ctypes.c_char_p)(cpu.device, None)
        self._use_threads = ctypes.CFUNCTYPE(None, address, number)(cpu.own_address("ggml_backend_set_n_threads"))
        self._device = cpu.device
        self._weights = weights or array.array("f", numbers(num_inputs * num_outputs, 104729))
        self._inputs = inputs or array.array("f", numbers(num_inputs * most_columns, 7919))
        self._num_inputs, self._num_outputs = num_inputs, num_outputs
        self._quantized: dict[int, array.array[int]] = {}

    def of(self, kind: int, columns: int, buffer_type: int | None) -> array.array[float] | None:
        """The product of the weights with columns; None if the buffer type does not take weights of this type.

        Args:
            kind: the weights' type in ggml.h.
            columns: the number of columns.
            buffer_type: the buffer type that the weights lie in; None for ggml's plain layout.
        """
        weights_arena, arena = self._arena(), self._arena()
        weights = self._new_matrix(weights_arena, kind, self._num_inputs, self._num_outputs)
        self._require(self._allocate(weights_arena, buffer_type or self._plain))
        inputs = self._new_matrix(arena, _F32, self._num_inputs, columns)
        product = self._mul_mat(arena, weights, inputs)
        given = {inputs: self._inputs[: self._num_inputs * columns]}
        return self._result(arena, product, (weights, kind), buffer_type, given)

    def of_experts(
        self, kind: int, experts: int, chosen: Sequence[Sequence[int]], buffer_type: int | None
    ) -> array.array[float] | None:
        """The products of several experts, each with the columns that have chosen it. The experts divide the weights.

        Args:
            kind: the weights' type in ggml.h.
            experts: the number of experts; each has num_outputs // experts outputs.
            chosen: for each column the numbers of its experts; all columns have the same number of experts.
            buffer_type: the buffer type that the weights lie in; None for ggml's plain layout.

        Returns:
            [columns][experts chosen][outputs]; None if the buffer type does not take weights of this type.
        """
        weights_arena, arena = self._arena(), self._arena()
        weights = self._new_stack(weights_arena, kind, self._num_inputs, self._num_outputs // experts, experts)
        self._require(self._allocate(weights_arena, buffer_type or self._plain))
        inputs = self._new_stack(arena, _F32, self._num_inputs, 1, len(chosen))
        ids = self._new_matrix(arena, _I32, len(chosen[0]), len(chosen))
        product = self._mul_mat_id(arena, weights, inputs, ids)
        given: dict[int, array.array[float] | array.array[int]] = {
            inputs: self._inputs[: self._num_inputs * len(chosen)],
            ids: array.array("i", [expert for column in chosen for expert in column]),
        }
        return self._result(arena, product, (weights, kind), buffer_type, given)

    def of_matrices(self, kind: int, matrices: int, columns: int, buffer_type: int | None) -> array.array[float] | None:
        """The products of several matrices, which divide the weights, with the same columns each.

        Args:
            kind: the weights' type in ggml.h.
            matrices: the number of matrices; each has num_outputs // matrices outputs.
            columns: the number of columns.
            buffer_type: the buffer type that the weights lie in; None for ggml's plain layout.

        Returns:
            [matrices][columns][outputs]; None if the buffer type does not take weights of this type.
        """
        weights_arena, arena = self._arena(), self._arena()
        weights = self._new_stack(weights_arena, kind, self._num_inputs, self._num_outputs // matrices, matrices)
        self._require(self._allocate(weights_arena, buffer_type or self._plain))
        inputs = self._new_stack(arena, _F32, self._num_inputs, columns, matrices)
        product = self._mul_mat(arena, weights, inputs)
        given = {inputs: self._inputs[: self._num_inputs * columns] * matrices}
        return self._result(arena, product, (weights, kind), buffer_type, given)

    def _result(
        self,
        arena: int,
        product: int,
        weights: tuple[int, int],
        buffer_type: int | None,
        given: Mapping[int, array.array[float] | array.array[int]],
    ) -> array.array[float] | None:
        self._require(self._allocate(arena, self._plain))
        if not self._supports(self._device, product):
            return None
        tensor_of_weights, kind = weights
        for tensor, content in {tensor_of_weights: self.quantized(kind), **given}.items():
            self._fill(tensor, content)
        return self._computed(arena, product, THREADS if buffer_type else 1)

    def _arena(self) -> int:
        """An arena for tensors, which is freed at the end of the process."""
        made: int = self._init(_InitParams(_ARENA, None, True))
        return made

    def _computed(self, arena: int, result: int, threads: int) -> array.array[float]:
        self._run(arena, [result], threads)
        return self._content(result)

    def _run(self, arena: int, results: Sequence[int], threads: int) -> None:
        self._use_threads(self._backend, threads)
        graph = self._new_graph(arena)
        for result in results:
            self._expand(graph, result)
        self._computes(graph)

    def _computes(self, graph: int) -> None:
        if self._compute(self._backend, graph) != 0:
            raise RuntimeError("ggml could not compute a product")

    def _content(self, result: int) -> array.array[float]:
        found: array.array[float] = array.array("f", bytes(self._num_bytes(result)))
        self._get(result, found.buffer_info()[0], 0, 4 * len(found))
        return found

    def quantized(self, kind: int) -> array.array[int]:
        """The weights as the bytes of a quantized type, row after row."""
        if kind not in self._quantized:
            size = self._num_outputs * self._row_size(kind, self._num_inputs)
            made = self._quantized[kind] = array.array("B", bytes(size))
            shape = (self._num_outputs, self._num_inputs)
            if kind in _MADE_UP:
                made[:] = array.array("B", random.Random(kind).randbytes(size))
                block = self._row_size(kind, _OF_BLOCK)
                made[::block], made[1::block] = (array.array("B", [byte] * (size // block)) for byte in _SCALE)
            else:
                self._quantize(kind, self._weights.buffer_info()[0], made.buffer_info()[0], 0, *shape, None)
        return self._quantized[kind]

    def _fill(self, tensor: int, content: array.array[float] | array.array[int]) -> None:
        self._set(tensor, content.buffer_info()[0], 0, len(content) * content.itemsize)

    def _require(self, buffer: int | None) -> None:
        if not buffer:
            raise MemoryError("ggml could not allocate a buffer")


def silence(cpu: CpuBackend) -> None:
    """Have ggml print nothing but its assertions."""
    cpu.function("ggml_log_set", None, _LogCallback, ctypes.c_void_p)(_SILENCE, None)


def difference(one: Sequence[float], other: Sequence[float]) -> float:
    """The mean difference of two results, relative to the mean size of a number. NaN if a result has a NaN."""
    return sum(abs(a - b) for a, b in zip(one, other, strict=True)) / sum(map(abs, one))


def numbers(count: int, step: int) -> Iterator[float]:
    """Made-up numbers from -1 to 1, without a pattern that repeats from one block of weights to the next."""
    return ((i * step % 10007) / 5003.5 - 1.0 for i in range(1, count + 1))
