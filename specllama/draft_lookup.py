"""The text itself as the draft: what followed when its end occurred before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from . import _core
from ._llama import why_no_rollback
from .draft import LOOKUP, Draft

if TYPE_CHECKING:
    from .llama import Llama


class LookupDraft(Draft):
    """Drafts from prompt, output and a corpus (prompt lookup decoding; Saxena 2023). It costs no decoding."""

    def __init__(self, target: Llama, corpus: npt.NDArray[np.int32]) -> None:
        super().__init__(LOOKUP)
        self._corpus = corpus
        self.unusable = why_no_rollback(target, "target")

    def engine(self, target: _core.Sequence) -> _core.Speculator:
        """See the base class."""
        return _core.Speculator(target, None, self._corpus)

    def pickled(self) -> str:
        """See the base class."""
        return LOOKUP
