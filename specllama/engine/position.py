"""Where a text is in its memory. That is not always what is evaluated by llama_cpp's count, ``n_tokens``.

After a generation the memory may have the last token, too, or lack some: of a recurrent model those since the last
copy of its state. They are decoded when somebody needs them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


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

    def tokens(self) -> npt.NDArray[np.intc]:
        """The tokens that the memory holds."""
        return self.ids[: self.held]
