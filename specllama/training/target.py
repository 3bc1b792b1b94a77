"""What a head has to know of its target, from the file alone."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from specllama.models.gguf_values import StoredTensor, architecture_of, parts_of, read_whole_header, stored
from specllama.models.weights_digest import Digest

from .torch_here import require_gguf_package

_HEAD_SIZE = 64  # of attention, where the target says none
_FEW = 8  # layers
_N_CTX = 4096  # where it says nothing


@dataclasses.dataclass(frozen=True)
class Target:
    """The target's sizes, and where its matrices are.

    Attributes:
        path: its file, the first one if it is one of several.
        architecture: llama.cpp's name for it.
        n_embd: numbers in a state.
        n_layer: layers.
        n_head: heads of attention.
        n_head_kv: heads of keys and values.
        head_size: numbers in each of them.
        n_ctx_train: tokens of a text that it was trained for.
        n_vocab: tokens.
        vocabulary: a hash of their texts.
        weights: a short name for its weights, see `Digest`.
        layers: what enters them the head reads: low, middle and high (EAGLE-3, arXiv 2503.01840, section 3.1), or the
            final state alone, see `specllama.Engine.open`.
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
        """Of tokens [n, n_embd]."""
        return self._rows("token_embd.weight", tokens)

    def output_rows(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """The rows [n, n_embd] of the output matrix that say these tokens."""
        return self._rows("output.weight" if "output.weight" in self._tensors else "token_embd.weight", tokens)

    def output_norm(self) -> npt.NDArray[np.float32]:
        """The weights [n_embd] of the norm before the output matrix; ones where it has none."""
        if "output_norm.weight" not in self._tensors:
            return np.ones(self.n_embd, np.float32)
        path, tensor = self._tensors["output_norm.weight"]
        return np.frombuffer(stored(path, tensor, 4 * tensor.size), "<f4").astype(np.float32)

    def _rows(self, name: str, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        gguf = require_gguf_package()
        path, tensor = self._tensors[name]
        kind = gguf.GGMLQuantizationType(tensor.kind)
        block, size = gguf.GGML_QUANT_SIZES[kind]
        of_row = tensor.shape[0] // block * size
        data = np.memmap(path, np.uint8, "r", tensor.offset, (tensor.shape[1], of_row))
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
    """SpecForge and speculators take the layers 2, n/2 and n - 3."""
    if n_layer < _FEW:
        return 1, max(1, n_layer // 2), n_layer - 1
    return 2, n_layer // 2, n_layer - 3


def _viewed(rows: npt.NDArray[np.uint8], kind: Any, gguf: Any) -> npt.NDArray[Any]:
    """Numbers that are stored as they are; other types are bytes to the package."""
    types = gguf.GGMLQuantizationType
    return rows.view({types.F32: np.float32, types.F16: np.float16}.get(kind, np.uint8))


def read_target(path: str) -> Target:
    """Read what a file says of the model in it.

    Raises:
        ValueError: it is damaged, or no model that a head can be made for.
        OSError: it cannot be read.
    """
    values, own = read_whole_header(path)
    architecture = architecture_of(values)
    tensors = {name: (path, tensor) for name, tensor in own.items()}
    for part in parts_of(path)[1:]:
        tensors.update({name: (part, tensor) for name, tensor in read_whole_header(part)[1].items()})

    def number(name: str, default: int) -> int:
        found = values.get(f"{architecture}.{name}", default)
        numbers = np.atleast_1d(np.asarray(found))
        return int(numbers.max()) if numbers.size and numbers.dtype.kind in "iu" else default

    tokens = values.get("tokenizer.ggml.tokens")
    n_embd, n_layer = number("embedding_length", 0), number("block_count", 0)
    if not isinstance(tokens, list) or "token_embd.weight" not in tensors or n_embd < 2 or n_layer < 2:
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
        vocabulary=hashlib.sha256(b"\0".join(tokens)).hexdigest(),
        weights=Digest(path, values, own).digest(),
        layers=_layers(n_layer),
        _tensors=tensors,
    )
