"""A function of the user's as the draft."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from specllama import _core
from specllama.backend.base_class import BaseLlama
from specllama.engine.memory import why_no_rollback

from .draft import Draft


class FunctionDraft(Draft):
    """Drafts what a llama_cpp ``LlamaDraftModel`` says: token ids in, the ids that may follow out.

    What it drafts must depend on nothing but the tokens that it is given: their q has one token. A function that draws
    its tokens at random returns ``(ids, q)``, where q[i] has the probabilities of the whole vocabulary that token i was
    drawn with: an array [ids, n_vocab].
    """

    def __init__(self, target: BaseLlama, function: Callable[[npt.NDArray[np.intc]], Any]) -> None:
        super().__init__(function)
        self._function = function
        self.unusable = why_no_rollback(target, "target")

    @staticmethod
    def takes(draft: Any) -> bool:
        """Whether this is a function; a Llama is one too, and is not meant."""
        return callable(draft) and not isinstance(draft, (BaseLlama, type))

    @property
    def label(self) -> str:
        """The name of its type."""
        return type(self._function).__name__

    def engine(
        self, target: _core.Sequence, own: _core.Sequence | None = None, scheduler: _core.Scheduler | None = None
    ) -> _core.Speculator:
        """See the base class."""
        return _core.Speculator(target, ["function"], function=self._propose, scheduler=scheduler)

    def pickled(self) -> Any:
        """See the base class."""
        return self._function

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


def _has_q(drafted: Any) -> bool:
    """Whether this is (ids, q); two ids in a tuple are not."""
    return isinstance(drafted, tuple) and len(drafted) == 2 and np.ndim(drafted[0]) == 1
