"""A trial, see `trial`: are products with quantized weights right that lie in one of ggml's buffer types?

`python -m specllama._product_trial LIBRARY BUFFER_TYPE`. It needs neither a model nor llama_cpp, whose import takes
longer than all of it.
"""

from __future__ import annotations

import array
import ctypes
import sys
from collections.abc import Iterator, Sequence

from specllama._ggml import CpuBackend

# Those of which ggml's AMX code has products, by their numbers in ggml.h.
_TYPES = {"Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14}
_F32 = 0
_INPUTS, _OUTPUTS = 256, 64  # of the weights; multiples of what AMX takes: 256 and 32, so that both threads have some
_COLUMNS = (1, 7, 33)  # tokens of a batch: AMX goes other ways for one, and for those beyond its tiles
# Each thread configures tiles of its own. Plain products take one: threads wait long for each other on a busy machine.
_THREADS = 2
_TOLERANCE = 0.1  # of the mean size of a result. What is seen is some thousandths; a wrong layout gives about 1
_ARENA = 1 << 20  # bytes, for the descriptions of tensors and the graph
_LogCallback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
# What ggml says of each tensor would stand where the reason of an end is looked for. Assertions speak up anyway.
_SILENCE = _LogCallback(lambda level, text, data: None)


class _InitParams(ctypes.Structure):
    """ggml_init_params."""

    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


class Products:
    """Matrix products by ggml's CPU backend."""

    def __init__(self, cpu: CpuBackend) -> None:
        address, number, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
        long, name = ctypes.c_int64, cpu.function
        self._init = name("ggml_init", address, _InitParams)
        self._new_matrix = name("ggml_new_tensor_2d", address, address, number, long, long)
        self._mul_mat = name("ggml_mul_mat", address, address, address, address)
        self._new_graph = name("ggml_new_graph", address, address)
        self._expand = name("ggml_build_forward_expand", None, address, address)
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
        self._weights = array.array("f", _numbers(_INPUTS * _OUTPUTS, 104729))
        self._inputs = array.array("f", _numbers(_INPUTS * max(_COLUMNS), 7919))
        self._quantized: dict[int, array.array[int]] = {}

    def of(self, kind: int, columns: int, buffer_type: int | None) -> array.array[float] | None:
        """The product of some weights with some columns; None if the buffer type does not take such weights.

        Args:
            kind: the weights' type in ggml.h.
            columns: how many.
            buffer_type: where the weights lie; None for ggml's plain layout.
        """
        weights_arena, arena = (self._init(_InitParams(_ARENA, None, True)) for _ in range(2))
        weights = self._new_matrix(weights_arena, kind, _INPUTS, _OUTPUTS)
        self._require(self._allocate(weights_arena, buffer_type or self._plain))
        inputs = self._new_matrix(arena, _F32, _INPUTS, columns)
        product = self._mul_mat(arena, weights, inputs)
        self._require(self._allocate(arena, self._plain))
        if not self._supports(self._device, product):
            return None
        self._fill(weights, self._weights_as(kind, self._num_bytes(weights)))
        self._fill(inputs, self._inputs[: _INPUTS * columns])
        self._use_threads(self._backend, _THREADS if buffer_type else 1)
        graph = self._new_graph(arena)
        self._expand(graph, product)
        if self._compute(self._backend, graph) != 0:
            raise RuntimeError("ggml could not compute a product")
        result = array.array("f", bytes(4 * _OUTPUTS * columns))
        self._get(product, result.buffer_info()[0], 0, 4 * len(result))
        return result  # the arenas are freed with the process

    def _weights_as(self, kind: int, size: int) -> array.array[int]:
        if kind not in self._quantized:
            made = self._quantized[kind] = array.array("B", bytes(size))
            self._quantize(kind, self._weights.buffer_info()[0], made.buffer_info()[0], 0, _OUTPUTS, _INPUTS, None)
        return self._quantized[kind]

    def _fill(self, tensor: int, content: array.array[float] | array.array[int]) -> None:
        self._set(tensor, content.buffer_info()[0], 0, len(content) * content.itemsize)

    def _require(self, buffer: int | None) -> None:
        if not buffer:
            raise MemoryError("ggml could not allocate a buffer")


def _numbers(count: int, step: int) -> Iterator[float]:
    """Numbers from -1 to 1 without a pattern that a block of weights could repeat."""
    return ((i * step % 10007) / 5003.5 - 1.0 for i in range(1, count + 1))


def _difference(one: Sequence[float], other: Sequence[float]) -> float:
    """The mean difference, where 1 is the mean size of a number. Not a number if one of them is none."""
    return sum(abs(a - b) for a, b in zip(one, other, strict=True)) / sum(map(abs, one))


def main(library: str, name: str) -> str:
    """Multiply; why the buffer type must not be used, or nothing."""
    loaded = ctypes.CDLL(library)
    cpu = CpuBackend(loaded)
    cpu.function("ggml_log_set", None, _LogCallback, ctypes.c_void_p)(_SILENCE, None)
    types = cpu.offered_buffer_types()
    if name not in types:
        return f"ggml has no buffer type {name} here"
    products, num_taken = Products(cpu), 0
    for kind, number in _TYPES.items():
        for columns in _COLUMNS:
            found = products.of(number, columns, types[name])
            if found is None:
                continue
            num_taken += 1
            plain = products.of(number, columns, None)
            assert plain is not None
            difference = _difference(plain, found)
            if not difference <= _TOLERANCE:
                return f"products of {kind} weights and {columns} columns are off by {difference:.3g} of their size"
    return "" if num_taken else f"the buffer type {name} takes none of {', '.join(_TYPES)}"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) or None)
