"""A Python function of the user's as the draft."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from specllama import _core
from specllama.backend.brief import brief
from specllama.engine.model import Model

from .draft import Draft, DraftKind, Loader, Sequences


class FunctionDraft(Draft):
    """A function that drafts, such as a ``LlamaDraftModel`` of llama_cpp.

    The function takes the token ids of the text so far, and returns token ids that may follow.

    A function that returns ids alone must be deterministic: its draft may depend on the given tokens only, since each
    drafted token counts as drawn with probability 1. A function that draws at random returns ``(ids, q)``. ``q`` is an
    array [ids, n_vocab], and ``q[i]`` has the probabilities that ``ids[i]`` was drawn with.
    """

    is_paced = False

    def __init__(self, target: Model, function: Callable[[npt.NDArray[np.intc]], Any]) -> None:
        super().__init__(function, target.why_no_rollback)
        self._function, self._n_vocab = function, target.n_vocab

    @property
    def label(self) -> str:
        """The name of the function's type."""
        return type(self._function).__name__

    def drafters(self, sequences: Sequences | None = None) -> list[_core.Drafter]:
        """See the base class."""
        return [_core.Drafter.function(self._propose)]

    def _propose(
        self, history: npt.NDArray[np.int32], num_draft_tokens: int
    ) -> tuple[list[int], npt.NDArray[np.float64] | Sequence[_core.Distribution]]:
        try:
            drafted = self._function(history.astype(np.intc))
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{os.path.basename(place.filename)}, line {place.lineno}"
            raise RuntimeError(f"{type(error).__name__}: {error} ({where})") from error
        if not _has_q(drafted):
            tokens = self._known(_ids(drafted)[:num_draft_tokens])
            return tokens, [_core.Distribution([token], [1.0]) for token in tokens]
        ids, q = _ids(drafted[0]), np.asarray(drafted[1], dtype=np.float64)
        # A draft may always be cut to its first num_draft_tokens, whatever the function has drawn.
        return self._known(ids[:num_draft_tokens]), q[:num_draft_tokens] if q.shape[:1] == (len(ids),) else q

    def _known(self, tokens: list[int]) -> list[int]:
        """Return the tokens after a check. The native loop checks them, too, but takes only numbers of up to 32 bits.

        Raises:
            ValueError: the target has no token with one of these numbers.
        """
        for place, token in enumerate(tokens):
            if not 0 <= token < self._n_vocab:
                raise ValueError(
                    f"the drafter gave token {token} at position {place}: it must be one of the target's "
                    f"{self._n_vocab}"
                )
        return tokens


def _ids(drafted: Any) -> list[int]:
    """The token ids that a function has returned. None counts as an empty draft.

    Raises:
        ValueError: the function has returned something else.
    """
    ids = np.asarray([] if drafted is None else drafted)
    if ids.ndim != 1 or ids.dtype.kind not in "iuf" or np.any(ids % 1):
        raise ValueError(
            f"the drafter gave {brief(drafted)}: it must be a list of token ids, which is empty for no draft, or "
            "(ids, q)"
        )
    return [int(token) for token in ids]


class DraftingFunction(DraftKind):
    """The kind of draft that is a function of the user's."""

    @classmethod
    def is_meant(cls, given: Any) -> bool:
        """See the base class. Classes and Llamas are callable, too, but are not meant."""
        return callable(given) and not isinstance(given, type) and not hasattr(given, "create_completion")

    def open(self, target: Model, loader: Loader) -> FunctionDraft:
        """See the base class."""
        return FunctionDraft(target, self.options.draft_model)


def _has_q(drafted: Any) -> bool:
    """Whether a function has returned ``(ids, q)``, and not a tuple of two ids."""
    return isinstance(drafted, tuple) and len(drafted) == 2 and np.ndim(drafted[0]) == 1
