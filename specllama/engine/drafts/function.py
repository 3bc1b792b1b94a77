"""A function of the user's that drafts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from specllama import _core
from specllama.engine.model import Model

from .draft import Draft, DraftKind, Loader, Sequences


class FunctionDraft(Draft):
    """A function that drafts, such as a llama_cpp ``LlamaDraftModel``: token ids in, the ids that may follow out.

    What it drafts must depend on nothing but the tokens that it is given: their q has one token. A function that draws
    its tokens at random returns ``(ids, q)``, where q[i] has the probabilities of the whole vocabulary that token i was
    drawn with: an array [ids, n_vocab].
    """

    is_paced = False

    def __init__(self, target: Model, function: Callable[[npt.NDArray[np.intc]], Any]) -> None:
        super().__init__(function, target.why_no_rollback)
        self._function = function

    @property
    def label(self) -> str:
        """The name of its type."""
        return type(self._function).__name__

    def loop(
        self, target: _core.Sequence, own: Sequences | None = None, scheduler: _core.Scheduler | None = None
    ) -> _core.Speculator:
        """See the base class."""
        return _core.Speculator(target, ["function"], function=self._propose, scheduler=scheduler)

    def _propose(
        self, history: npt.NDArray[np.int32], num_draft_tokens: int
    ) -> tuple[list[int], _core.DraftProbabilities]:
        drafted = self._function(history.astype(np.intc))
        if not _has_q(drafted):
            tokens = [int(token) for token in np.asarray(drafted)[:num_draft_tokens]]
            return tokens, [_core.Distribution([token], [1.0]) for token in tokens]
        tokens, q = [int(token) for token in drafted[0]], np.asarray(drafted[1], dtype=np.float64)
        # A draft may stop anywhere, whatever was drawn.
        return tokens[:num_draft_tokens], q[:num_draft_tokens] if q.shape[:1] == (len(tokens),) else q


class DraftingFunction(DraftKind):
    """A function from token ids to those that may follow."""

    @classmethod
    def is_meant(cls, given: Any) -> bool:
        """See the base class. A class is no function, and no more is a Llama, which is callable, too."""
        return callable(given) and not isinstance(given, type) and not hasattr(given, "create_completion")

    def open(self, target: Model, loader: Loader) -> FunctionDraft:
        """See the base class."""
        return FunctionDraft(target, self.options.draft_model)


def _has_q(drafted: Any) -> bool:
    """Whether this is (ids, q); two ids in a tuple are not."""
    return isinstance(drafted, tuple) and len(drafted) == 2 and np.ndim(drafted[0]) == 1
