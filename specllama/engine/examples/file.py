"""The file of one kept text: its tokens, and what the target computed for the tokens of its answer."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specllama.backend.replacing import replacing
from specllama.engine.prefixes.folder import safely

ENDING = ".npz"
_COLUMNS = ("tokens", "first", "states", "likely", "shares")
_OUT_OF = 10  # every tenth conversation is held out
_LETTERS = 16  # of a digest, in hexadecimal digits


@dataclasses.dataclass(frozen=True)
class Kept:
    """A text with what a head learns from it.

    Attributes:
        tokens: the end of the prompt, and the answer [n].
        first: the index in `tokens` of the first token that has a row. There are `m` rows, one token after the other.
        states: the target's final states of these tokens [m, n_embd], in float16.
        likely: the likeliest next tokens after each of them, the likeliest first [m, k].
        shares: the target's probabilities of these [m, k], in float16. 0: there are no more tokens.
    """

    tokens: npt.NDArray[np.int32]
    first: int
    states: npt.NDArray[np.float16]
    likely: npt.NDArray[np.int32]
    shares: npt.NDArray[np.float16]


class Name(NamedTuple):
    """What the name of a kept text's file says. All of it is a function of the text and of those before it.

    Attributes:
        text: a digest of all tokens of the text.
        conversation: `prompt` of the first text of the conversation.
        prompt: a digest of the prompt.
        size: how many tokens the prompt has.
    """

    text: str
    conversation: str
    prompt: str
    size: int

    @property
    def is_held_out(self) -> bool:
        """Whether no head learns from the text, but is measured on it. It is all or none of a conversation."""
        return int(self.conversation, 16) % _OUT_OF == 0

    def __str__(self) -> str:
        """The name of the file."""
        return f"{self.text}-{self.conversation}-{self.prompt}-{self.size}{ENDING}"

    @classmethod
    def read(cls, name: str) -> Name | None:
        """What a file's name says; None if it is the name of no kept text."""
        parts = name.removesuffix(ENDING).split("-")
        if not name.endswith(ENDING) or len(parts) != 4 or not parts[3].isdecimal():
            return None
        if any(len(part) != _LETTERS or set(part) - set("0123456789abcdef") for part in parts[:3]):
            return None
        return cls(parts[0], parts[1], parts[2], int(parts[3]))


def shortened(digest: bytes) -> str:
    """A digest as it is in a name."""
    return digest.hex()[:_LETTERS]


def write_kept(path: Path, kept: Kept) -> None:
    """Write a text. Its owner alone can read the file.

    Raises:
        OSError: the disk is full, or cannot be written.
    """
    with replacing(path) as temporary, open(temporary, "wb", opener=safely) as file:
        np.savez(file, **{name: getattr(kept, name) for name in _COLUMNS})


def read_kept(path: str | os.PathLike[str]) -> Kept | None:
    """Read a text; None if the file is gone or damaged."""
    try:
        with open(path, "rb", opener=safely) as file, np.load(file, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in _COLUMNS}
        kept = Kept(**{**found, "first": int(found["first"])})
    except Exception:  # a damaged archive raises whatever the part raises that reads it
        return None
    return kept if _is_whole(kept) else None


def num_rows_of(path: str | os.PathLike[str]) -> int:
    """How many tokens of an answer a file has; 0 if it is gone or damaged. Most of the file is not read."""
    try:
        with open(path, "rb", opener=safely) as file, np.load(file, allow_pickle=False) as arrays:
            return len(arrays["shares"])
    except Exception:  # as above
        return 0


def _is_whole(kept: Kept) -> bool:
    types = {"tokens": "i4", "states": "f2", "likely": "i4", "shares": "f2"}
    if any(getattr(kept, name).dtype != np.dtype(kind) for name, kind in types.items()):
        return False
    if kept.tokens.ndim != 1 or kept.states.ndim != 2 or kept.likely.ndim != 2:
        return False
    num_rows = len(kept.states)
    return (
        kept.shares.shape == kept.likely.shape
        and len(kept.likely) == num_rows
        and 0 <= kept.first <= len(kept.tokens) - num_rows
        and bool(np.isfinite(kept.states).all() and np.isfinite(kept.shares).all())
    )
