"""Drafts that are looked up in the prompt, the output and a corpus, such as ``"lookup"`` (Saxena 2023).

They need no decoding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from specllama import _core
from specllama.engine.model import Model
from specllama.engine.options import Options

from .draft import GRAMMAR, Draft, DraftKind, Loader, Sequences
from .draft_options import TEXT

TEXT_DRAFTERS = tuple(drafter.name for drafter in _core.drafters() if drafter.needs == "text")
"""The names of all drafters that need only the text."""


class TextDraft(Draft):
    """A draft that is looked up in the text by one of `TEXT_DRAFTERS`."""

    def __init__(self, target: Model, name: str, corpus: npt.NDArray[np.int32]) -> None:
        super().__init__(name, target.why_no_rollback)
        self._name = name
        self._corpus = corpus

    def loop(
        self, target: _core.Sequence, own: Sequences | None = None, scheduler: _core.Scheduler | None = None
    ) -> _core.Speculator:
        """See the base class."""
        return _core.Speculator(target, [GRAMMAR, self._name], corpus=self._corpus, scheduler=scheduler)

    def looks_up(self, options: Options) -> bool:
        """See the base class."""
        return options.most_draft_tokens > 0


class NamedTextDrafter(DraftKind):
    """The kind of draft that is one of `TEXT_DRAFTERS`, given by its name."""

    takes = TEXT

    @classmethod
    def is_meant(cls, given: Any) -> bool:
        """See the base class."""
        return isinstance(given, str) and given in TEXT_DRAFTERS

    def open(self, target: Model, loader: Loader) -> TextDraft:
        """See the base class."""
        return TextDraft(target, self.options.draft_model, self.corpus(target, loader))
