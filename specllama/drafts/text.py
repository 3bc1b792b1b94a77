"""The text itself as the draft: drafters of the native table that need neither a model nor a function."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from specllama import _core
from specllama.backend.base_class import BaseLlama
from specllama.engine.memory import why_no_rollback

from .draft import GRAMMAR, Draft


class TextDraft(Draft):
    """Drafts from prompt, output and a corpus, as ``"lookup"`` (Saxena 2023) does. It costs no decoding."""

    def __init__(self, target: BaseLlama, name: str, corpus: npt.NDArray[np.int32]) -> None:
        super().__init__(name)
        self._name = name
        self._corpus = corpus
        self.unusable = why_no_rollback(target, "target")

    def engine(
        self, target: _core.Sequence, own: _core.Sequence | None = None, scheduler: _core.Scheduler | None = None
    ) -> _core.Speculator:
        """See the base class."""
        return _core.Speculator(target, [GRAMMAR, self._name], corpus=self._corpus, scheduler=scheduler)

    def pickled(self) -> str:
        """See the base class."""
        return self._name
