"""Where a text is in its memory. That is not always what is evaluated by llama_cpp's count, ``n_tokens``.

After a generation the memory may have the last token, too, or lack some: of a recurrent model those since the last
copy of its state. They are decoded when somebody needs them.

Not all that is decoded are tokens. A chat handler puts the embeddings of an image into the memory by itself, and says
then how much is evaluated. Each place of it gets a number of its own, which no token has. So it is taken for nothing
but itself: a prompt that has these numbers goes on behind this very image, as long as the memory holds it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from specllama import _core

_MOST_NUMBERS = 1 << 30
_lock = threading.Lock()
_num_used = 0


def numbers_of_embeddings(count: int) -> npt.NDArray[np.intc]:
    """Numbers [count] that nothing else has in this process."""
    global _num_used
    with _lock:
        first = _num_used
        _num_used += count
    return (_core.FIRST_EMBEDDING - np.arange(first, first + count) % _MOST_NUMBERS).astype(np.intc)


def only_tokens(text: Sequence[int]) -> list[int]:
    """A text without what is no token. It may be wrong."""
    return [token for token in text if type(token) is not int or token > _core.FIRST_EMBEDDING]


def num_common(one: npt.NDArray[np.intc], other: npt.NDArray[np.intc]) -> int:
    """How many tokens two texts have in common at their beginnings."""
    most = min(len(one), len(other))
    different = np.flatnonzero(one[:most] != other[:most])
    return int(different[0]) if len(different) else most


class Position:
    """Tokens, how many of them are evaluated, and how many the memory holds.

    Attributes:
        ids: the tokens [n_ctx]; those that are not evaluated mean nothing.
        evaluated: how many tokens the next one comes behind.
        held: how many the memory has. That may be one more, or fewer.
        num_changes: how often somebody else than a generation has changed what the memory holds.
    """

    def __init__(self, n_ctx: int = 0) -> None:
        self.ids: npt.NDArray[np.intc] = np.zeros(n_ctx, dtype=np.intc)
        self.evaluated = self.held = self.num_changes = 0

    def move(self, evaluated: int, held: int) -> None:
        """For a generation: it is at another place of its text."""
        self.evaluated, self.held = evaluated, held

    def change(self, evaluated: int) -> None:
        """For everybody else: the memory holds so many of the tokens, and they may be others."""
        self.evaluated = self.held = evaluated
        self.num_changes += 1

    def skip(self, evaluated: int) -> None:
        """The same for who has decoded by themselves: of what is new here, nobody has said which tokens it is."""
        if evaluated > self.evaluated:
            new = self.ids[self.evaluated : evaluated]
            new[:] = numbers_of_embeddings(len(new))
        self.change(evaluated)

    @property
    def has_embeddings(self) -> bool:
        """Whether some of what the memory holds is no token."""
        return bool((self.tokens() <= _core.FIRST_EMBEDDING).any())

    def tokens(self) -> npt.NDArray[np.intc]:
        """The tokens that the memory holds."""
        return self.ids[: self.held]
