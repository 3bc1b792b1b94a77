"""Quantized rows and models, made by ggml's own quantizer."""

from __future__ import annotations

import ctypes
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import structs
import tiny_models
from llama_cpp import llama_cpp as bindings

from specllama import _core
from specllama.backend.prepare import prepare_backend
from specllama.models.quantize import quantize

TYPES = sorted(_core.quantized_types())
KERNELS = prepare_backend().kernels
needs_kernels = pytest.mark.skipif(
    not KERNELS.instruction_set, reason=f"this machine's llama.cpp has no kernels of ours: {KERNELS.why_not}"
)


def quantized(weights: npt.NDArray[np.float32], kind: str) -> npt.NDArray[np.uint8]:
    """The rows of a matrix as a GGUF file of this type holds them: bytes [rows, bytes of a row]."""
    rows, columns = weights.shape
    values, size, number = structs.values(_core.quantized_types()[kind])
    made = np.zeros((rows, columns // values * size), dtype=np.uint8)
    given = np.ascontiguousarray(weights, dtype=np.float32)
    address, count = ctypes.c_void_p, ctypes.c_int64
    quantize = bindings._lib.ggml_quantize_chunk
    quantize.restype = ctypes.c_size_t
    quantize.argtypes = [ctypes.c_int, address, address, count, count, count, address]
    assert quantize(number, given.ctypes.data, made.ctypes.data, 0, rows, columns, None) == made.nbytes
    return made


def dequantized_by_gguf(weights: npt.NDArray[np.uint8], kind: str) -> npt.NDArray[np.float32]:
    """What the package gguf, llama.cpp's own in Python, takes the rows for: [rows, columns]."""
    rows = gguf.quants.dequantize(weights, gguf.GGMLQuantizationType[kind])
    return np.asarray(rows, dtype=np.float32)


def quantized_model(folder: Path, kind: str) -> Path:
    """A tiny model whose rows are whole blocks of every type, with heads of 64 numbers; made if it is not there."""
    path, made = folder / "wide.gguf", folder / f"wide-{kind}.gguf"
    if not path.exists():
        vocabulary = tiny_models.word_vocabulary()
        weights = tiny_models.llama_weights(vocabulary, 5, n_embd=256, n_ff=512)
        tiny_models.write_llama(path, vocabulary, weights)
    return made if made.exists() else quantize(path, kind, output=made)


def quantized_mixture(folder: Path, kind: str) -> Path:
    """The same as a mixture of experts, whose rows are not whole panels."""
    path, made = folder / "mixture.gguf", folder / f"mixture-{kind}.gguf"
    if not path.exists():
        vocabulary = tiny_models.word_vocabulary()
        weights = tiny_models.llama_weights(vocabulary, 5, n_embd=256, n_ff=256)
        tiny_models.write_llama(path, vocabulary, tiny_models.with_experts(weights, 6))
    return made if made.exists() else quantize(path, kind, output=made)
