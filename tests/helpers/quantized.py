"""Quantized models, made by ggml's own quantizer."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_models

from specllama import _core
from specllama.backend.prepare import prepare_backend
from specllama.models.catalog import FILE_TYPES
from specllama.models.quantize import quantize

TYPES = sorted(_core.quantized_types())
KERNELS = prepare_backend().kernels
needs_kernels = pytest.mark.skipif(
    not KERNELS.instruction_set, reason=f"this machine's llama.cpp has no kernels of ours: {KERNELS.why_not}"
)


def quantized_model(folder: Path, kind: str) -> Path:
    """A tiny model whose rows are whole blocks of every type, with heads of 64 numbers; made if it is not there.

    The kind is one of `FILE_TYPES`, or a type that all matrices are of.
    """
    vocabulary = tiny_models.word_vocabulary()
    return _made(folder, "wide", kind, vocabulary, tiny_models.llama_weights(vocabulary, 5, n_embd=256, n_ff=512))


def quantized_mixture(folder: Path, kind: str) -> Path:
    """The same as a mixture of experts, whose rows are not whole panels."""
    vocabulary = tiny_models.word_vocabulary()
    weights = tiny_models.llama_weights(vocabulary, 5, n_embd=256, n_ff=256)
    return _made(folder, "mixture", kind, vocabulary, tiny_models.with_experts(weights, 6))


def _made(folder: Path, name: str, kind: str, vocabulary: tiny_models.Vocabulary, weights: tiny_models.Weights) -> Path:
    path, made = folder / f"{name}.gguf", folder / f"{name}-{kind}.gguf"
    if made.exists():
        return made
    if kind not in FILE_TYPES:
        kinds = {name: kind for name, matrix in weights.items() if matrix.ndim > 1 and "gate_inp" not in name}
        return tiny_models.write_llama(made, vocabulary, weights, kinds)
    if not path.exists():
        tiny_models.write_llama(path, vocabulary, weights)
    return quantize(path, kind, output=made)
