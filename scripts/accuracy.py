"""Prints how far products of quantized weights are from exact ones: llama.cpp's kernels and ours, for every type.

Run it where ``specllama[test]`` is installed: ``python scripts/accuracy.py``. It needs no model and no quiet machine.
*Exact* is the product of the dequantized weights with the activations, all in double precision. What remains is what a
kernel loses: it rounds the activations to 8 bits (ours leaves them as they are for F16 and BF16), and sums in single
precision. The error is the root of the mean
square, where 1 is the size of a result.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import functools

import gguf
import llama_cpp
import numpy as np
import numpy.typing as npt
import recorded

from specllama import _core
from specllama.backend.cpu import cpu_name
from specllama.backend.ggml import CpuBackend
from specllama.backend.ggml_products import Products, silence
from specllama.backend.kernels import offer_to, packing

INPUTS, OUTPUTS = 2048, 256
COLUMNS = (1, 8)
OUTLIERS = 8  # so many inputs are 20 times as large as all others, as in the layers of a language model

Matrix = npt.NDArray[np.float64]


def activations(rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Random activations [columns, inputs]. A few inputs are larger in all columns."""
    found = rng.normal(size=(max(COLUMNS), INPUTS))
    found[:, rng.choice(INPUTS, OUTLIERS, replace=False)] *= 20
    return found.astype(np.float32)


def error(found: Matrix, exact: Matrix) -> float:
    """The error of a product, where 1 is the size of a result."""
    return float(np.sqrt(np.mean((found - exact) ** 2) / np.mean(exact**2)))


def number_of(kind: str) -> int:
    """The type's number in GGUF files."""
    return _core.quantized_types()[kind].number


def dequantized(products: Products, kind: str) -> Matrix:
    """The weights as the type has them."""
    rows = np.frombuffer(products.quantized(number_of(kind)), np.uint8).reshape(OUTPUTS, -1)
    with contextlib.suppress(KeyError, NotImplementedError):  # the package gguf does not know the newest types
        return gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[kind]).astype(np.float64)
    made = np.empty((OUTPUTS, INPUTS), np.float32)
    llama_cpp.llama_cpp._lib[f"dequantize_row_{kind.lower()}"](
        ctypes.c_void_p(rows.ctypes.data), ctypes.c_void_p(made.ctypes.data), ctypes.c_int64(made.size)
    )
    return made.astype(np.float64)


def errors(products: Products, kind: str, buffer_type: int | None, inputs: npt.NDArray[np.float32]) -> list[float]:
    """The error for each number of columns; empty if the buffer type does not take such weights."""
    number = number_of(kind)
    exact = inputs.astype(np.float64) @ dequantized(products, kind).T
    found = [products.of(number, columns, buffer_type) for columns in COLUMNS]
    return [
        error(np.array(one).reshape(columns, OUTPUTS), exact[:columns])
        for one, columns in zip(found, COLUMNS, strict=True)
        if one is not None
    ]


def apart(products: Products, kind: str, buffer_type: int) -> float:
    """How far our products are from llama.cpp's, where 1 is the size of a result."""
    number = number_of(kind)
    theirs = products.of(number, max(COLUMNS), None)
    with packing([kind]):
        ours = products.of(number, max(COLUMNS), buffer_type)
    assert theirs is not None
    assert ours is not None
    return error(np.array(ours, np.float64), np.array(theirs, np.float64))


def main() -> None:
    """Print the table."""
    parser = recorded.parser(__doc__)
    given = parser.parse_args()
    rng = np.random.default_rng(1)
    weights, inputs = rng.normal(size=(OUTPUTS, INPUTS)).astype(np.float32), activations(rng)
    cpu = CpuBackend(llama_cpp.llama_cpp._lib)
    silence(cpu)
    name = _core.instruction_sets()[0]
    place = offer_to(cpu, name).address  # of CPU_REPACK, which brings weights of other models into llama.cpp's order
    arrays = {"weights": array.array("f", weights.ravel()), "inputs": array.array("f", inputs.ravel())}
    products = Products(cpu, INPUTS, OUTPUTS, max(COLUMNS), **arrays)
    measure = functools.partial(errors, products, inputs=inputs)
    found = {
        kind: {"llama.cpp": measure(kind, None), "llama.cpp, repacked": measure(kind, place)}
        for kind in sorted(_core.quantized_types())
    }
    with packing(found):
        for kind, of in found.items():
            of["ours"] = measure(kind, place)
    for kind, of in found.items():
        cells = (f"{way} " + " ".join(f"{one:.3%}" for one in each) for way, each in of.items() if each)
        print(f"{kind}: {'; '.join(cells)}")
    if given.record:
        machine = {"cpu": cpu_name(), "llama_cpp_python": llama_cpp.__version__, "kernels": name}
        shape = {"inputs": INPUTS, "outputs": OUTPUTS, "columns": COLUMNS}
        differences = {kind: apart(products, kind, place) for kind in found}
        recorded.keep(given.record, {"machine": machine, **shape, "errors": found, "apart": differences})


if __name__ == "__main__":
    main()
