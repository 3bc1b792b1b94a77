"""``min_tokens``: until a text has this many tokens, no token may end it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from specllama.backend.brief import brief
from specllama.engine.model import Model
from specllama.engine.options import checked_index
from specllama.engine.vocabulary import end_tokens

_Scores = npt.NDArray[np.single]
"""An array [n_vocab]."""


def checked_min_tokens(value: Any) -> int:
    """Check the least number of tokens.

    Raises:
        TypeError: the number is no int.
        ValueError: the number is negative.
    """
    count = checked_index("min_tokens", value, "an int: how many tokens the text has at least")
    if count < 0:
        raise ValueError(f"min_tokens={brief(count)} must be 0 or more: how many tokens the text has at least")
    return count


class MinTokens:
    """A logits processor that keeps one text from ending early. A stop string or ``max_tokens`` may still end it.

    Args:
        model: the model that generates.
        count: the least number of tokens in the text.
    """

    def __init__(self, model: Model, count: int) -> None:
        self._ends = model.once(end_tokens)
        self._count = count
        self._prompt_size: int | None = None  # in tokens; set when the first token is sampled

    def __call__(self, input_ids: npt.NDArray[np.intc], scores: _Scores) -> _Scores:
        """Return the scores [n_vocab] of the next token. If the text is too short, those of end tokens are -inf."""
        if self._prompt_size is None:
            self._prompt_size = len(input_ids)
        if len(input_ids) - self._prompt_size < self._count:
            scores[self._ends] = -np.inf
        return scores
