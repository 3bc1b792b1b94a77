"""Drafts found in the prompt, the output and a corpus (prompt lookup; Saxena 2023). They need no decoding."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from specllama import _core
from specllama.engine.model import Model
from specllama.engine.options import Options

from .draft import LOOKUP, Draft, DraftKind, Loader, Sequences
from .draft_options import TEXT


class LookupDraft(Draft):
    """A draft that is looked up in the text so far, and in a corpus [n] of tokens."""

    def __init__(self, target: Model, corpus: npt.NDArray[np.int32]) -> None:
        super().__init__(LOOKUP, target.why_no_rollback)
        self._corpus = corpus

    def drafters(self, sequences: Sequences | None = None) -> list[_core.Drafter]:
        """See the base class."""
        return [_core.Drafter.grammar(), _core.Drafter.lookup(self._corpus)]

    def looks_up(self, options: Options) -> bool:
        """See the base class."""
        return options.most_draft_tokens > 0


class Lookup(DraftKind):
    """The kind of draft with the name ``"lookup"``."""

    name = LOOKUP
    takes = TEXT

    def open(self, target: Model, loader: Loader) -> LookupDraft:
        """See the base class."""
        return LookupDraft(target, self.corpus(target, loader))
