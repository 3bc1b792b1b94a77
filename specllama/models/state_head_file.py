"""Files of heads that read only the target's final hidden state: Medusa, Hydra and blockwise parallel heads.

The format is our own. docs/make-your-own-draft.md lists the names of its values and tensors.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from .gguf_values import (
    StoredTensor,
    UnusableFileError,
    architecture_of,
    cached,
    parts_of,
    read_whole_header,
    read_without_texts,
    stored,
    text_in,
    tokens_in,
)
from .head_file import number_in, require_tokens, require_width
from .head_kinds import OF_THE_FINAL_STATE

ARCHITECTURES = {kind: f"specllama-{kind}" for kind in OF_THE_FINAL_STATE}
_KINDS = {architecture: kind for kind, architecture in ARCHITECTURES.items()}
_MOST_PLACES, _MOST_LAYERS = 64, 64
_F32 = 0


def vocabulary_hash(tokens: Sequence[bytes]) -> str:
    """A hash of the texts of all tokens, in hexadecimal."""
    return hashlib.sha256(b"\0".join(tokens)).hexdigest()


@dataclasses.dataclass(frozen=True)
class StateHeadFile:
    """The description of a Medusa, Hydra or blockwise head in a file.

    Attributes:
        path: the file.
        kind: ``"medusa"``, ``"hydra"`` or ``"blockwise"``.
        hidden_size: how many numbers the target's hidden state has.
        num_places: the most tokens that it drafts at once.
        num_layers: the number of layers for each of these tokens.
        n_vocab: the number of tokens in the target's vocabulary.
        vocabulary: the `vocabulary_hash` of the target; empty if the file has none.
        tensors: the place of each tensor in the file, by name.
    """

    path: str
    kind: str
    hidden_size: int
    num_places: int
    num_layers: int
    n_vocab: int
    vocabulary: str
    tensors: Mapping[str, StoredTensor]

    def require_fit(self, *, n_layer: int, n_embd: int, n_vocab: int) -> None:
        """Check that the head was made for a target.

        Args:
            n_layer: not used.
            n_embd: how many numbers a hidden state of the target has.
            n_vocab: the number of tokens in the target's vocabulary.

        Raises:
            UnusableFileError: the head does not fit.
        """
        require_width(self.path, self.hidden_size, n_embd)
        if self.n_vocab != n_vocab:
            raise UnusableFileError(
                f"the head {os.path.basename(self.path)} is for another target: that has {self.n_vocab} tokens, and "
                f"this one {n_vocab}"
            )
        require_tokens(self.path, self.tensors, self.n_vocab, n_vocab, has_matrix=True)

    def require_vocabulary(self, target: str) -> None:
        """Check that the target has the vocabulary that the head was made for.

        Args:
            target: the target's file.

        Raises:
            UnusableFileError: it has another one, or its header is damaged.
            OSError: the file cannot be read.
        """
        tokens = tokens_in(read_whole_header(parts_of(target)[0])[0])
        if self.vocabulary and tokens and vocabulary_hash(tokens) != self.vocabulary:
            raise UnusableFileError(
                f"the head {os.path.basename(self.path)} is for another target: its tokens are not those of "
                f"{os.path.basename(target)}"
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
        """The token of each row of the output matrix, as an array [rows]. It is empty if row i is token i."""
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


@cached
def read_state_head(path: str) -> StateHeadFile | None:
    """Read the description of a Medusa, Hydra or blockwise head.

    Returns:
        None if the file is something else, or no whole GGUF file.

    Raises:
        UnusableFileError: its description is incomplete or out of range.
    """
    try:
        architecture = architecture_of(read_without_texts(path, until_tokens=True)[0])
        if architecture not in _KINDS:
            return None
        values, tensors = read_whole_header(path)
    except (UnusableFileError, OSError):
        return None

    def number(name: str, least: int, most: int) -> int:
        found = number_in(path, values, f"{architecture}.{name}")
        if not least <= found <= most:
            raise UnusableFileError(
                f"{path} is a head whose {architecture}.{name} is {found}: it must be {least} to {most}"
            )
        return found

    return StateHeadFile(
        path=path,
        kind=_KINDS[architecture],
        hidden_size=number("embedding_length", 1, 1 << 20),
        num_places=number("place_count", 1, _MOST_PLACES),
        num_layers=number("layer_count", 0, _MOST_LAYERS),
        n_vocab=number("vocab_size", 1, 1 << 26),
        vocabulary=text_in(values, "specllama.target.vocabulary"),
        tensors=tensors,
    )
