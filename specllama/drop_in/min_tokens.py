"""``min_tokens``: the tokens that end a text are held back until it has so many."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from specllama.engine.model import Model
from specllama.engine.options import checked_index
from specllama.engine.vocabulary import end_tokens

_Scores = npt.NDArray[np.single]
"""[n_vocab]"""


def checked_min_tokens(value: Any) -> int:
    """How many tokens a text has at least.

    Raises:
        TypeError: no int.
        ValueError: a negative one.
    """
    count = checked_index("min_tokens", value, "an int: how many tokens the text has at least")
    if count < 0:
        raise ValueError(f"min_tokens={count} must be 0 or more: how many tokens the text has at least")
    return count


class MinTokens:
    """A logits processor for one generation.

    Args:
        model: whose tokens they are.
        count: how many the text has at least. A stop string, or ``max_tokens``, may end it before.
    """

    def __init__(self, model: Model, count: int) -> None:
        self._ends = model.once(end_tokens)
        self._count = count
        self._prompt_size: int | None = None  # until it is called for the first token

    def __call__(self, input_ids: npt.NDArray[np.intc], scores: _Scores) -> _Scores:
        """The scores of the next token."""
        if self._prompt_size is None:
            self._prompt_size = len(input_ids)
        if len(input_ids) - self._prompt_size < self._count:
            scores[self._ends] = -np.inf
        return scores
