"""The position of a text: how many of its tokens are evaluated, and how many the memory holds.

The two numbers may differ. The evaluated tokens are those that llama_cpp counts in ``n_tokens``. After a generation the
memory may also hold the last token. Or the memory may lack some evaluated tokens: of a recurrent model those since the
last copy of its state. Missing tokens are decoded when they are needed.

The memory may hold more than tokens. A chat handler puts the embeddings of an image into the memory by itself, and sets
afterwards how many places are evaluated. Each place of the image then gets a number of its own, which no token has. So
a prompt with these numbers continues after this very image, as long as the memory holds the image.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from specllama import _core

_MOST_NUMBERS = 1 << 29  # of each kind
_lock = threading.Lock()
_num_used = 0


def numbers_of_embeddings(count: int) -> npt.NDArray[np.intc]:
    """New numbers [count] for places of embeddings. Each number is used only once in this process."""
    global _num_used
    with _lock:
        first = _num_used
        _num_used += count
    return (_core.FIRST_EMBEDDING - np.arange(first, first + count) % _MOST_NUMBERS).astype(np.intc)


def numbers_of_image(digest: bytes, count: int) -> npt.NDArray[np.intc]:
    """The numbers [count] for places of an image that has this digest: the same in every process."""
    drawn = np.frombuffer(hashlib.shake_128(digest).digest(4 * count), dtype="<u4")
    return (_core.FIRST_EMBEDDING - _MOST_NUMBERS - 1 - (drawn % (_MOST_NUMBERS - 1)).astype(np.int64)).astype(np.intc)


def is_of_this_process(text: npt.NDArray[np.intc]) -> npt.NDArray[np.bool_]:
    """Which numbers of a text stand for embeddings that no other process knows."""
    return (text <= _core.FIRST_EMBEDDING) & (text > _core.FIRST_EMBEDDING - _MOST_NUMBERS)


def only_tokens(text: Sequence[int]) -> list[int]:
    """A text without the numbers of embeddings. Wrong tokens are not removed."""
    return [token for token in text if type(token) is not int or token > _core.FIRST_EMBEDDING]


def num_common(one: npt.NDArray[np.intc], other: npt.NDArray[np.intc]) -> int:
    """How many tokens two texts have in common at their beginnings."""
    most = min(len(one), len(other))
    different = np.flatnonzero(one[:most] != other[:most])
    return int(different[0]) if len(different) else most


class Position:
    """The tokens of a text, how many of them are evaluated, and how many the memory holds.

    Attributes:
        ids: the tokens [n_ctx]; beyond the evaluated and the held tokens the values mean nothing.
        evaluated: how many tokens are evaluated. The next token comes after them.
        held: how many tokens the memory holds: one more than `evaluated`, as many, or fewer.
        num_changes: how often the memory was changed by other code than a generation.
    """

    def __init__(self, n_ctx: int = 0) -> None:
        self.ids: npt.NDArray[np.intc] = np.zeros(n_ctx, dtype=np.intc)
        self.evaluated = self.held = self.num_changes = 0

    def move(self, evaluated: int, held: int) -> None:
        """Set both numbers, as a generation goes on."""
        self.evaluated, self.held = evaluated, held

    @contextlib.contextmanager
    def reporting(self, tokens: npt.NDArray[np.intc]) -> Iterator[None]:
        """A block in which the position says that these tokens are evaluated, for functions of the user's."""
        before, num_changes = self.evaluated, self.num_changes
        self.ids[: len(tokens)] = tokens
        self.evaluated = len(tokens)
        try:
            yield
        finally:
            if self.num_changes == num_changes:
                self.evaluated = before

    def change(self, evaluated: int) -> None:
        """Record a change by other code than a generation: the memory holds this many tokens, and they may be new."""
        self.evaluated = self.held = evaluated
        self.num_changes += 1

    def skip(self, evaluated: int, numbers: npt.NDArray[np.intc] | None = None) -> None:
        """Record that other code has decoded up to this place.

        Args:
            evaluated: the place.
            numbers: the numbers of the new places. None: what was decoded is unknown, so each gets a new number.
        """
        if evaluated > self.evaluated:
            new = self.ids[self.evaluated : evaluated]
            new[:] = numbers_of_embeddings(len(new)) if numbers is None else numbers
        self.change(evaluated)

    @property
    def has_embeddings(self) -> bool:
        """Whether the memory holds something that is not a token."""
        return bool((self.tokens() <= _core.FIRST_EMBEDDING).any())

    def tokens(self) -> npt.NDArray[np.intc]:
        """The tokens that the memory holds."""
        return self.ids[: self.held]
