"""Describes the target of a head, from the target's file alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from specllama.models import (
    Digest,
    StoredTensor,
    architecture_of,
    parts_of,
    read_whole_header,
    stored,
    tokens_in,
    vocabulary_hash,
)

from .torch_here import require_gguf_package

_F32 = 0  # a ggml_type
_HEAD_SIZE = 64  # numbers in an attention head, for a target whose file does not say it
_FEW = 8  # layers: for a model with fewer, `_layers` has another rule
_N_CTX = 4096  # tokens of the trained context, for a target whose file does not say it


@dataclasses.dataclass(frozen=True)
class Target:
    """The sizes of a target, and the places of its matrices in its files.

    Attributes:
        path: the file, or the first part of a split one.
        architecture: llama.cpp's name of the architecture.
        n_embd: how many numbers a hidden state has.
        n_layer: the number of layers, without those for MTP.
        n_head: the number of attention heads.
        n_head_kv: the number of heads for keys and values.
        head_size: how many numbers an attention head has.
        n_ctx_train: the most tokens in a text that the target was trained for.
        n_vocab: the number of tokens in the vocabulary.
        vocabulary: a hash of the texts of all tokens.
        weights: the `Digest` of the target's weights.
        layers: the layers whose inputs the head reads: a low, a middle and a high one (EAGLE-3, arXiv 2503.01840,
            section 3.1), or `FINAL` alone for the final state, as in `specllama.Engine.open`.
    """

    path: str
    architecture: str
    n_embd: int
    n_layer: int
    n_head: int
    n_head_kv: int
    head_size: int
    n_ctx_train: int
    n_vocab: int
    vocabulary: str
    weights: str
    layers: tuple[int, ...]
    _tensors: Mapping[str, tuple[str, StoredTensor]] = dataclasses.field(repr=False)

    def embeddings(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """The embeddings of tokens [n, n_embd]."""
        return self._rows("token_embd.weight", tokens)

    def output_rows(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """The rows of the output matrix for tokens [n, n_embd]."""
        return self._rows("output.weight" if "output.weight" in self._tensors else "token_embd.weight", tokens)

    def output_norm(self) -> npt.NDArray[np.float32]:
        """The weights of the norm before the output matrix [n_embd]; ones if there is no such norm."""
        found = self.vector("output_norm.weight")
        return np.ones(self.n_embd, np.float32) if found is None else found

    @property
    def num_weights(self) -> int:
        """The number of weights in all tensors."""
        return sum(tensor.size for _, tensor in self._tensors.values())

    @property
    def names(self) -> frozenset[str]:
        """The names of all tensors."""
        return frozenset(self._tensors)

    def shape_of(self, name: str) -> tuple[int, int]:
        """The rows and columns of a matrix.

        Raises:
            ValueError: there is no such matrix.
        """
        found = self._tensors.get(name)
        if found is None or len(found[1].shape) != 2:
            raise ValueError(f"{self.path} has no matrix {name}: it is damaged, or of a kind that cannot be trained")
        columns, rows = found[1].shape
        return rows, columns

    def matrix(self, name: str) -> npt.NDArray[np.float32]:
        """A whole matrix [rows, columns]."""
        return self._rows(name, np.arange(self.shape_of(name)[0]))

    def vector(self, name: str) -> npt.NDArray[np.float32] | None:
        """A vector, such as the weights of a norm; None if there is no tensor of this name.

        Raises:
            ValueError: the vector is of another type than F32.
        """
        if name not in self._tensors:
            return None
        path, tensor = self._tensors[name]
        if tensor.kind != _F32:
            raise ValueError(
                f"{path} has a vector {name} of another type than F32: train with another file of this model"
            )
        return np.frombuffer(stored(path, tensor), "<f4").astype(np.float32)

    def _rows(self, name: str, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        gguf = require_gguf_package()
        path, tensor = self._tensors[name]
        kind = gguf.GGMLQuantizationType(tensor.kind)
        num_rows, _ = self.shape_of(name)
        data = np.memmap(path, np.uint8, "r", tensor.offset, (num_rows, tensor.num_bytes // num_rows))
        rows = np.ascontiguousarray(data[tokens])
        try:
            found: npt.NDArray[np.float32] = gguf.quants.dequantize(_viewed(rows, kind, gguf), kind)
        except NotImplementedError:
            raise ValueError(
                f"{self.path}: {name} is of the type {kind.name}, which the gguf package cannot read: train with "
                "another file of this model"
            ) from None
        return found.astype(np.float32).reshape(len(tokens), -1)


def _layers(n_layer: int) -> tuple[int, int, int]:
    """The layers for an EAGLE-3 head: 2, n/2 and n - 3, as the trainers SpecForge and speculators choose them."""
    if n_layer < _FEW:
        return 1, max(1, n_layer // 2), n_layer - 1
    return 2, n_layer // 2, n_layer - 3


def _viewed(rows: npt.NDArray[np.uint8], kind: Any, gguf: Any) -> npt.NDArray[Any]:
    """View stored rows as the type that the gguf package expects: floats for F32 and F16, bytes for all others."""
    types = gguf.GGMLQuantizationType
    return rows.view({types.F32: np.float32, types.F16: np.float16}.get(kind, np.uint8))


def read_target(path: str) -> Target:
    """Read the description of a target.

    Raises:
        ValueError: the file is damaged, or is no model that a head can be made for.
        OSError: the file cannot be read.
    """
    values, first = read_whole_header(path)
    architecture = architecture_of(values)
    tensors = {name: (path, tensor) for name, tensor in first.items()}
    for part in parts_of(path)[1:]:
        tensors.update({name: (part, tensor) for name, tensor in read_whole_header(part)[1].items()})

    def number(name: str, default: int) -> int:
        found = values.get(f"{architecture}.{name}", default)
        numbers = np.atleast_1d(np.asarray(found))
        return int(numbers.max()) if numbers.size and numbers.dtype.kind in "iu" else default

    tokens = tokens_in(values)
    # If there are MTP layers, they come last. They are no part of the model that writes.
    n_embd, n_layer = number("embedding_length", 0), number("block_count", 0) - number("nextn_predict_layers", 0)
    if not tokens or "token_embd.weight" not in tensors or n_embd < 2 or n_layer < 2:
        raise ValueError(f"{path} is no language model that a head can be trained for: it needs tokens, and two layers")
    n_head = number("attention.head_count", 0) or max(1, n_embd // _HEAD_SIZE)
    head_size = number("attention.key_length", n_embd // n_head)
    n_head_kv = number("attention.head_count_kv", n_head) or n_head
    return Target(
        path=path,
        architecture=architecture,
        n_embd=n_embd,
        n_layer=n_layer,
        n_head=n_head,
        n_head_kv=n_head_kv if n_head % n_head_kv == 0 else n_head,
        head_size=head_size - head_size % 2,
        n_ctx_train=number("context_length", 0) or _N_CTX,
        n_vocab=len(tokens),
        vocabulary=vocabulary_hash(tokens),
        weights=Digest(path, values, first).digest(),
        layers=_layers(n_layer),
        _tensors=tensors,
    )
