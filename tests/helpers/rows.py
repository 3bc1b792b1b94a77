"""Rows of weights as GGUF files hold them, by ggml's own quantizer."""

from __future__ import annotations

import contextlib
import ctypes
import math

import gguf
import numpy as np
import numpy.typing as npt
import structs
from llama_cpp import llama_cpp as bindings

from specllama import _core


def quantized(weights: npt.NDArray[np.float32], kind: str) -> npt.NDArray[np.uint8]:
    """A tensor as a GGUF file of this type holds it: its last axis [columns] becomes [bytes of a row], others stay."""
    *others, columns = weights.shape
    values, size, number = structs.values(_core.quantized_types()[kind])
    made = np.zeros((*others, columns // values * size), dtype=np.uint8)
    rows = math.prod(others)
    given = np.ascontiguousarray(weights, dtype=np.float32)
    address, count = ctypes.c_void_p, ctypes.c_int64
    quantize = bindings._lib.ggml_quantize_chunk
    quantize.restype = ctypes.c_size_t
    quantize.argtypes = [ctypes.c_int, address, address, count, count, count, address]
    importance = np.ones(columns, dtype=np.float32)  # IQ2_XXS and IQ2_XS are not made without
    all_ = (given.ctypes.data, made.ctypes.data, 0, rows, columns, importance.ctypes.data)
    assert quantize(number, *all_) == made.nbytes
    return made


def dequantized(weights: npt.NDArray[np.uint8], kind: str) -> npt.NDArray[np.float32]:
    """What the package gguf, llama.cpp's own in Python, takes the rows for: [rows, columns]; else what ggml does."""
    with contextlib.suppress(KeyError, NotImplementedError):  # the package does not know the newest types
        return np.asarray(gguf.quants.dequantize(weights, gguf.GGMLQuantizationType[kind]), dtype=np.float32)
    values, size, _ = structs.values(_core.quantized_types()[kind])
    made = np.empty((len(weights), weights.shape[1] // size * values), dtype=np.float32)
    convert = bindings._lib[f"dequantize_row_{kind.lower()}"]
    convert.restype, convert.argtypes = None, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    convert(weights.ctypes.data, made.ctypes.data, made.size)
    return made


def number_of(kind: str) -> gguf.GGMLQuantizationType:
    """A type's number in GGUF files, so that a GGUFWriter of the package takes it."""
    values, size, number = structs.values(_core.quantized_types()[kind])
    gguf.GGML_QUANT_SIZES.setdefault(number, (values, size))  # it does not know the newest types
    return number
