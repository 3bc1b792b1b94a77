"""A trial, see `trial`: do our kernels work in ggml's threads, for every type of weights, as ggml's own do?

`python -m specllama.backend._kernel_trial LIBRARY INSTRUCTION_SET`.
"""

from __future__ import annotations

import array
import ctypes
import sys

from specllama import _core

from .ggml import CpuBackend
from .ggml_products import Products, difference, silence
from .kernels import offer_to

# Inputs and outputs of the weights: one block and several, whole panels of rows and a part of one.
_SHAPES = ((256, 16), (768, 37))
_COLUMNS = (1, 2, 5, 8, 9, 33)  # every way of sharing out columns to tiles
_SMALL = 0.1  # of the mean size of a result. What is seen is some thousandths; a wrong layout gives about 1


def main(library: str, instruction_set: str) -> str:
    """Multiply; why the kernels must not be used, or nothing."""
    cpu = CpuBackend(ctypes.CDLL(library))
    silence(cpu)
    ours = offer_to(cpu, instruction_set).address
    for inputs, outputs in _SHAPES:
        products = Products(cpu, inputs, outputs, max(_COLUMNS))
        for kind, quantized in _core.quantized_types().items():
            why_not = _tried(products, kind, quantized.number, ours, outputs)
            if why_not:
                return f"{why_not}, weights of {inputs} x {outputs}"
    return ""


def _tried(products: Products, kind: str, number: int, ours: int, outputs: int) -> str:
    alone: array.array[float] | None = None
    for columns in _COLUMNS:
        found, plain = products.of(number, columns, ours), products.of(number, columns, None)
        if found is None or plain is None:
            return f"{kind} is not multiplied"
        off = difference(plain, found)
        if not off <= _SMALL:
            return f"products of {kind} and {columns} columns are off by {off:.3g} of their size"
        alone = alone or found
        if found[:outputs] != alone:
            return f"a column of {kind} differs among {columns} columns from the same one alone"
    return ""


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) or None)
