"""A trial (see `trial`): do our kernels, in ggml's threads, give ggml's own results for every type of weights?

The trial is run as `python -m specllama.backend._kernel_trial LIBRARY INSTRUCTION_SET`.
"""

from __future__ import annotations

import array
import ctypes
import sys
from collections.abc import Callable

from specllama import _core

from .ggml import CpuBackend
from .ggml_attention import WAYS, Attention
from .ggml_products import Products, difference, silence
from .kernels import offer_to

# (inputs, outputs) of the weights: one block in a row or several; whole panels of rows, or an incomplete one.
_SHAPES = ((256, 16), (768, 37))
_COLUMNS = (1, 2, 5, 8, 9, 33)  # numbers of columns: every way in which the kernels divide columns among tiles
_EXPERTS, _CHOSEN = 4, (0, 2)  # the number of experts, and the experts that the first column chooses
_CELLS = (256, 768)  # numbers of cells of a cache: ggml divides each number among threads in another way
_SMALL = 0.1  # the largest relative difference of results. A right layout gives some thousandths, a wrong one 1


def main(library: str, instruction_set: str) -> str:
    """Compare our results with ggml's. Returns why the kernels must not be used; empty if they may."""
    cpu = CpuBackend(ctypes.CDLL(library))
    silence(cpu)
    made = offer_to(cpu, instruction_set)
    ours, kinds = made.address, {kind: _core.quantized_types()[kind].number for kind in made.types}
    why_not = _tried_theirs(Products(cpu, *_SHAPES[0], max(_COLUMNS)), ours)
    if why_not:
        return why_not
    _core.KernelBufferType.take_weights(made.types)
    for inputs, outputs in _SHAPES:
        products = Products(cpu, inputs, outputs, max(_COLUMNS))
        for kind, number in kinds.items():
            why_not = _tried(products, kind, number, ours, outputs)
            if why_not:
                return f"{why_not}, weights of {inputs} x {outputs}"
    inputs, outputs = _SHAPES[-1]
    stacked = Products(cpu, inputs, outputs * _EXPERTS, max(_COLUMNS))
    for kind, number in kinds.items():
        why_not = _tried_experts(stacked, kind, number, ours, outputs)
        if why_not:
            return f"{why_not}, experts of {inputs} x {outputs}"
        why_not = _tried_matrices(stacked, kind, number, ours, outputs)
        if why_not:
            return f"{why_not}, matrices of {inputs} x {outputs}"
    attention = Attention(cpu, max(_CELLS), max(_COLUMNS))
    tries = (_tried_attention(attention, ours, cells, way) for cells in _CELLS for way in WAYS)
    return next((why_not for why_not in tries if why_not), "")


def _tried_theirs(products: Products, ours: int) -> str:
    """Does CPU_REPACK arrange and multiply the weights of other models as before?"""
    before, number = _core.KernelBufferType.bytes_loaded(), _core.quantized_types()["Q4_0"].number
    for columns in _COLUMNS:
        found, plain = products.of(number, columns, ours), products.of(number, columns, None)
        off = 0.0 if found is None or plain is None else difference(plain, found)  # None: not rearranged here
        if not off <= _SMALL:
            return f"llama.cpp's own products of {columns} columns are off by {off:.3g} of their size"
    return "" if _core.KernelBufferType.bytes_loaded() == before else "weights of other models are packed"


def _tried(products: Products, kind: str, number: int, ours: int, outputs: int) -> str:
    return _compared(kind, outputs, lambda columns, where: products.of(number, columns, where), ours)


def _tried_experts(products: Products, kind: str, number: int, ours: int, outputs: int) -> str:
    """Compare products of experts. Returns what is wrong with our products; empty if nothing is wrong.

    The first column and its experts are the same for all numbers of columns. The other columns choose all experts, so
    that an expert has one column or several.
    """

    def product(columns: int, where: int | None) -> array.array[float] | None:
        chosen = [[(column + column // 3 + one) % _EXPERTS for one in _CHOSEN] for column in range(columns)]
        return products.of_experts(number, _EXPERTS, chosen, where)

    return _compared(kind, outputs * len(_CHOSEN), product, ours)


def _tried_matrices(products: Products, kind: str, number: int, ours: int, outputs: int) -> str:
    return _compared(kind, outputs, lambda columns, where: products.of_matrices(number, _EXPERTS, columns, where), ours)


def _compared(kind: str, size: int, product: Callable[[int, int | None], array.array[float] | None], ours: int) -> str:
    alone: array.array[float] | None = None
    for columns in _COLUMNS:
        found, plain = product(columns, ours), product(columns, None)
        if found is None or plain is None:
            return f"{kind} is not multiplied"
        off = difference(plain, found)
        if not off <= _SMALL:
            return f"products of {kind} and {columns} columns are off by {off:.3g} of their size"
        alone = alone or found[:size]
        if found[:size] != alone:
            return f"a column of {kind} differs among {columns} columns from the same one alone"
    return ""


def _tried_attention(attention: Attention, ours: int, cells: int, way: str) -> str:
    name = f"{way} a cache of {cells} cells"
    number = _core.quantized_types()["Q8_0"].number
    alone: list[float] = []
    for columns in _COLUMNS:
        found = attention.attended(number, columns, ours, cells, way)
        off = difference(attention.attended(number, columns, None, cells, way), found)
        if not off <= _SMALL:
            return f"{name} of {columns} tokens are off by {off:.3g} of their size"
        alone = alone or found
        if found[: len(alone)] != alone:
            return f"{name}: a token differs among {columns} from the same one alone"
    return ""


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) or None)
