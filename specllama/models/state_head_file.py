"""Files of heads that read only the target's final hidden state: Medusa, Hydra and blockwise parallel heads.

The format is specllama's own. docs/make-your-own-draft.md lists the names of its values and tensors.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .gguf_values import (
    StoredTensor,
    UnusableFileError,
    architecture_of,
    parts_of,
    read_whole_header,
    stored,
    text_in,
    tokens_in,
)
from .head_file import HeadFile, number_in
from .head_kinds import OF_THE_FINAL_STATE, OURS

ARCHITECTURES = {kind: f"{OURS}{kind}" for kind in OF_THE_FINAL_STATE}
_KINDS = {architecture: kind for kind, architecture in ARCHITECTURES.items()}
_MOST_PLACES, _MOST_LAYERS = 64, 64
_F32 = 0


def vocabulary_hash(tokens: Sequence[bytes]) -> str:
    """A hash of the texts of all tokens, in hexadecimal."""
    return hashlib.sha256(b"\0".join(tokens)).hexdigest()


@dataclasses.dataclass(frozen=True, kw_only=True)
class StateHeadFile(HeadFile):
    """The description of a Medusa, Hydra or blockwise head in a file.

    Attributes:
        kind: ``"medusa"``, ``"hydra"`` or ``"blockwise"``.
        num_places: the most tokens that the head drafts at once.
        num_layers: the number of layers for each of these tokens.
        vocabulary: the `vocabulary_hash` of the target; empty if the file has none.
    """

    kind: str
    num_places: int
    num_layers: int
    vocabulary: str

    @classmethod
    def is_of(cls, values: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> bool:
        """See the base class."""
        return architecture_of(values) in _KINDS

    @classmethod
    def read(cls, path: str, values: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> StateHeadFile:
        """See the base class."""
        architecture = architecture_of(values)

        def number(name: str, least: int, most: int) -> int:
            found = number_in(path, values, f"{architecture}.{name}")
            if not least <= found <= most:
                raise UnusableFileError(
                    f"{path} is a head whose {architecture}.{name} is {found}: it must be {least} to {most}"
                )
            return found

        return cls(
            path=path,
            kind=_KINDS[architecture],
            hidden_size=number("embedding_length", 1, 1 << 20),
            num_places=number("place_count", 1, _MOST_PLACES),
            num_layers=number("layer_count", 0, _MOST_LAYERS),
            n_vocab=number("vocab_size", 1, 1 << 26),
            vocabulary=text_in(values, "specllama.target.vocabulary"),
            tensors=tensors,
        )

    def bytes_of_token(self, size: int) -> int:
        """See the base class. Each place of a draft has weights of its own, besides those that all places share."""
        of_places = sum(one.num_bytes for name, one in self.tensors.items() if name.startswith("place."))
        shared = sum(one.num_bytes for name, one in self.tensors.items() if name.startswith(("output.", "hidden.")))
        return of_places // self.num_places + shared

    def require_fit(self, *, n_layer: int, n_embd: int, n_vocab: int) -> None:
        """See the base class."""
        super().require_fit(n_layer=n_layer, n_embd=n_embd, n_vocab=n_vocab)
        if self.n_vocab != n_vocab:
            raise UnusableFileError(
                f"the head {self.name} is for another target: that has {self.n_vocab} tokens, and this one {n_vocab}"
            )
        self.require_tokens(n_vocab, has_matrix=True)

    def require_vocabulary(self, target: str) -> None:
        """Check that the target has the vocabulary that the head was made for.

        Args:
            target: the target's file.

        Raises:
            UnusableFileError: the target has another vocabulary, or the header of its file is damaged.
            OSError: the file cannot be read.
        """
        tokens = tokens_in(read_whole_header(parts_of(target)[0])[0])
        if self.vocabulary and tokens and vocabulary_hash(tokens) != self.vocabulary:
            raise UnusableFileError(
                f"the head {self.name} is for another target: its tokens are not those of {os.path.basename(target)}"
            )

    def floats(self, name: str) -> npt.NDArray[np.float32]:
        """A vector as an array [n].

        Raises:
            UnusableFileError: there is no such tensor, or its type is not F32.
        """
        tensor = self.tensor(name)
        if tensor.kind != _F32:
            raise UnusableFileError(f"{self.path} is a head whose {name} has type {tensor.kind}: vectors must be F32")
        return np.frombuffer(stored(self.path, tensor), "<f4").astype(np.float32)

    def tokens(self) -> npt.NDArray[np.int32]:
        """The token of each row of the output matrix, as an array [rows]. The array is empty if row i is token i."""
        if "d2t" not in self.tensors:
            return np.empty(0, np.int32)
        return np.frombuffer(stored(self.path, self.tensors["d2t"]), "<i8").astype(np.int32)

    def tensor(self, name: str) -> StoredTensor:
        """The place of a tensor in the file.

        Raises:
            UnusableFileError: there is no such tensor.
        """
        if name not in self.tensors:
            raise UnusableFileError(f"{self.path} is a head that is damaged: it has no {name}")
        return self.tensors[name]


def mapped(path: str, tensor: StoredTensor) -> npt.NDArray[np.uint8]:
    """The bytes of a tensor, mapped into memory.

    Raises:
        OSError: the file cannot be read.
    """
    return np.memmap(path, np.uint8, "r", tensor.offset, (tensor.num_bytes,))
