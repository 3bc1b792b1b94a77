"""What all files of heads have in common. A head is a layer that reads hidden states of a target, and drafts for it."""

from __future__ import annotations

import abc
import dataclasses
import os
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from .gguf_values import StoredTensor, UnusableFileError, stored

_F32, _I64 = 0, 27  # values of ggml_type
_DIMENSIONS_OF_MATRICES = 2
_NEVER_WEIGHTS = range(24, 29)  # values of ggml_type: I8 to I64, and F64


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadFile(abc.ABC):
    """The description of a head in a file.

    Attributes:
        path: the file.
        hidden_size: how many numbers a hidden state of the target has.
        n_vocab: the number of tokens in the head's vocabulary, which is the target's.
        layers: the target's layers whose inputs the head reads, numbered from 0; empty if the head reads other states.
        tensors: the place of each tensor in the file, by name. If the token embeddings or the output matrix are
            missing, the head uses the target's.
    """

    path: str
    hidden_size: int
    n_vocab: int
    layers: tuple[int, ...] = ()
    tensors: Mapping[str, StoredTensor]

    in_model: ClassVar[str | None] = None
    """The ``draft_model`` that means such layers in the target's own file; None if no target has them."""

    @property
    def name(self) -> str:
        """The file's name, for messages."""
        return os.path.basename(self.path)

    @classmethod
    @abc.abstractmethod
    def is_of(cls, values: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> bool:
        """Whether a file with these metadata and tensors is a head of this kind."""

    @classmethod
    @abc.abstractmethod
    def read(cls, path: str, values: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> HeadFile:
        """Read the description in the file of a head of this kind.

        Raises:
            UnusableFileError: the description is incomplete, or the head cannot be run.
        """

    @classmethod
    def num_named(cls, values: Mapping[str, Any]) -> int:
        """The number of layers of this kind that the metadata of a target's own file name."""
        return 0

    @classmethod
    def num_in_model(cls, path: str) -> int:
        """The number of layers of this kind in a target's own file.

        Raises:
            UnusableFileError: there are no such layers, or they cannot be run.
        """
        raise NotImplementedError

    def bytes_of_token(self, size: int) -> int:
        """How many bytes of weights one drafted token reads. `size` is that of the file in bytes."""
        return size

    def require_fit(self, *, n_layer: int, n_embd: int, n_vocab: int) -> None:
        """Check that the head was made for a target. With another, llama.cpp would crash or read arbitrary memory.

        Args:
            n_layer: the number of the target's layers.
            n_embd: how many numbers a hidden state of the target has.
            n_vocab: the number of tokens in the target's vocabulary.

        Raises:
            UnusableFileError: the head does not fit.
        """
        if self.hidden_size != n_embd:
            raise UnusableFileError(
                f"the head {self.name} is for another target: it reads states of {self.hidden_size} numbers, and this "
                f"one's have {n_embd}"
            )
        if not all(0 < layer < n_layer for layer in self.layers):
            raise UnusableFileError(
                f"the head {self.name} is for another target: it reads the inputs of the layers "
                f"{', '.join(map(str, self.layers))}, and this target shows those of the layers 1 to {n_layer - 1}"
            )

    def require_memory(self, target: str) -> None:  # noqa: B027
        """Check that the head can read a target's memory, if it reads one.

        Args:
            target: the target's file.

        Raises:
            UnusableFileError: the target has another memory, or the header of its file is damaged.
            OSError: the file cannot be read.
        """

    def require_tokens(self, n_vocab: int, *, has_matrix: bool) -> None:
        """Check that the head can read all tokens of its target, and drafts no other tokens.

        Args:
            n_vocab: the number of tokens in the target's vocabulary.
            has_matrix: whether the head has an output matrix of its own.

        Raises:
            UnusableFileError: the head does not fit.
        """
        tensors, name = self.tensors, self.name
        if "token_embd.weight" in tensors and tensors["token_embd.weight"].shape[-1] < n_vocab:
            raise UnusableFileError(
                f"the head {name} has embeddings of {tensors['token_embd.weight'].shape[-1]} tokens, and the target "
                f"has {n_vocab}"
            )
        said = tensors["d2t"].size if "d2t" in tensors else self.n_vocab
        if not has_matrix and said != n_vocab:
            raise UnusableFileError(
                f"the head {name} drafts {said} tokens with the target's output matrix, which has {n_vocab} rows: it "
                "needs a matrix of its own"
            )
        if "d2t" not in tensors:
            return
        if tensors["d2t"].kind != _I64:
            raise UnusableFileError(f"the head {name} is damaged: d2t must be of 64-bit integers")
        ids = np.frombuffer(stored(self.path, tensors["d2t"]), "<i8")
        most = min(n_vocab, self.n_vocab) - 1
        if not 0 <= ids.min() <= ids.max() <= most:
            raise UnusableFileError(
                f"the head {name} drafts tokens from {ids.min()} to {ids.max()}, and the target has 0 to {most}: its "
                "d2t must have token ids of the target"
            )


def number_in(path: str, values: Mapping[str, Any], name: str) -> int:
    """A number in the metadata of a head's file.

    Raises:
        UnusableFileError: the value is missing, or no number.
    """
    found = values.get(name)
    if not isinstance(found, int) or isinstance(found, bool):
        raise UnusableFileError(f"{path} is a head whose {name} must be a number, and is {found!r:.60}")
    return found


def require_turns(path: str, values: Mapping[str, Any], architecture: str, *, same_values: bool = False) -> None:
    """Check the sizes for rotary positions (RoPE), in which llama.cpp turns pairs of numbers of queries and keys.

    Args:
        path: the head's file.
        values: the file's metadata.
        architecture: the head's architecture.
        same_values: whether the values of the head's attention must have the size of the keys.

    Raises:
        UnusableFileError: llama.cpp would crash at an assertion with these sizes.
    """
    width = number_in(path, values, f"{architecture}.embedding_length")
    heads = values.get(f"{architecture}.attention.head_count")
    of_keys = values.get(f"{architecture}.attention.head_count_kv", heads)
    if not isinstance(heads, int) or not isinstance(of_keys, int):
        return  # arrays with a number for each layer: llama.cpp checks the shapes of the tensors
    if not 0 < of_keys <= heads <= width or heads % of_keys:
        raise UnusableFileError(
            f"{path} is a head with impossible sizes: {heads} attention heads, {of_keys} heads for keys, width {width}"
        )
    size = values.get(f"{architecture}.attention.key_length", width // heads)
    turned = values.get(f"{architecture}.rope.dimension_count", size)
    of_values = values.get(f"{architecture}.attention.value_length", width // heads)
    if same_values and not np.array_equal(of_values, size):
        raise UnusableFileError(
            f"{path} is a head with keys of {size!r:.60} numbers and values of {of_values!r:.60}: they must be alike"
        )
    if isinstance(size, int) and isinstance(turned, int) and not (0 < turned <= size and turned % 2 == 0):
        raise UnusableFileError(
            f"{path} is a head whose rope.dimension_count is {turned}: it must be even, and from 2 to {size}, the size "
            "of its attention heads"
        )


def require_types(path: str, tensors: Mapping[str, StoredTensor]) -> None:
    """Check the types of a head's tensors. llama.cpp can multiply by some types; for others it has null pointers.

    Raises:
        UnusableFileError: a tensor has a type that cannot be multiplied.
    """
    for name, tensor in tensors.items():
        is_matrix = len(tensor.shape) == _DIMENSIONS_OF_MATRICES
        if name != "d2t" and (tensor.kind in _NEVER_WEIGHTS or not (is_matrix or tensor.kind == _F32)):
            raise UnusableFileError(
                f"{path} is a head whose {name} has type {tensor.kind}: vectors must be F32, and matrices floats or "
                "quantized"
            )


def layers_in(path: str, values: Mapping[str, Any], name: str, counts: range) -> tuple[int, ...]:
    """The numbers of the target's layers that a head's file names.

    Raises:
        UnusableFileError: the file names no layers, or a number of layers that is not in `counts`.
    """
    layers = np.asarray(values.get(name, []))
    if layers.ndim != 1 or layers.size not in counts or layers.dtype.kind not in "iu":
        raise UnusableFileError(f"{path} is a head that must name the layers of its target ({name})")
    return tuple(int(layer) for layer in layers)
