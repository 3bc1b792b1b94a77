"""The text itself as the draft: what followed when its end occurred before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from . import _core
from ._llama import why_no_rollback
from .draft import LOOKUP, Draft

if TYPE_CHECKING:
    from .llama import Llama


class LookupDraft(Draft):
    """Drafts from prompt, output and a corpus (prompt lookup decoding; Saxena 2023). It costs no decoding."""

    def __init__(self, target: Llama, corpus: str | list[int] | None) -> None:
        super().__init__(LOOKUP)
        tokens = target.tokenize(corpus.encode(), add_bos=False) if isinstance(corpus, str) else corpus
        self._corpus = np.asarray(tokens or [], dtype=np.int32)
        self.unusable = why_no_rollback(target, "target")

    def engine(self, target: _core.Context) -> _core.Speculator:
        """See the base class."""
        return _core.Speculator(target, None, self._corpus)

    def pickled(self) -> str:
        """See the base class."""
        return LOOKUP
