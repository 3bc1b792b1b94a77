"""An entry of the store: a copy of what a memory holds of some tokens, under a name made of all tokens up to there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

BLOCK = 256
"""Tokens of a block."""

Tokens = npt.NDArray[np.int32]
Data = npt.NDArray[np.uint8]
Kind = Literal["range", "point"]
"""``"range"``: the keys and values of a block's tokens. ``"point"``: the state behind its last token, which a recurrent
memory or a sliding window has besides; or the whole memory, where llama.cpp cannot copy ranges."""


class Name(NamedTuple):
    """The name of an entry.

    Attributes:
        root: a digest of all that the memory was computed with.
        parent: the digest of the text before the block; `root` for the first block.
        own: the digest of the text with the block.
        kind: what was copied.
    """

    root: bytes
    parent: bytes
    own: bytes
    kind: Kind


class Entry(NamedTuple):
    """A copy."""

    name: Name
    tokens: Tokens
    """The tokens of the block: at most `BLOCK`."""
    data: Data

    @property
    def num_bytes(self) -> int:
        """The size of the copy."""
        return self.data.nbytes + self.tokens.nbytes


class Room:
    """Memory for the data of one entry after the other."""

    def __init__(self) -> None:
        self._array = np.empty(0, dtype=np.uint8)

    def of(self, size: int) -> Data:
        """An array of this size, which the next call may return again."""
        if len(self._array) < size:
            self._array = np.empty(size, dtype=np.uint8)
        return self._array[:size]


class Tier(Protocol):
    """A place where entries are kept. What is not there, or not to be read, is None, or missing in a list."""

    def has(self, name: Name) -> bool:
        """Whether the entry is there."""

    def load(self, name: Name, room: Room) -> Data | None:
        """The data of an entry, which may be in `room`, and is then valid until that is used again."""

    def children(self, root: bytes, parent: bytes, kind: Kind) -> list[tuple[Name, Tokens]]:
        """The entries for blocks that follow a text."""

    def use(self, names: Iterable[Name]) -> None:
        """Note that entries were used. The last one counts as the newest."""


def digest_of(parent: bytes, tokens: Tokens) -> bytes:
    """The digest of a text and the tokens behind it."""
    return hashlib.blake2b(tokens.astype("<i4").tobytes(), key=parent, digest_size=16).digest()


def blocks_of(root: bytes, text: Tokens) -> Iterator[tuple[bytes, bytes, int, Tokens]]:
    """The blocks of a text: the digests before and behind it, the place of its first token, and its tokens.

    The last block may be shorter than `BLOCK`.
    """
    parent = root
    for start in range(0, len(text), BLOCK):
        tokens = text[start : start + BLOCK]
        own = digest_of(parent, tokens)
        yield parent, own, start, tokens
        parent = own
