"""What the texts of one engine have in common: how they speculate, what has been said, and their sums."""

from __future__ import annotations

import threading

from specllama.stats import Stats, Tally
from specllama.warn import warn

from .earlier_answers import EarlierAnswers
from .options import FallbackWarning, Options


class Account:
    """One for all slots of an engine. Any thread may use it.

    Attributes:
        options: how to speculate where a request does not say.
        earlier: what was answered before, where that is kept.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.earlier = EarlierAnswers()
        self._lock = threading.Lock()
        self._warned: dict[str, object] = {}
        self._sums = Tally()

    def warn_once(self, message: str) -> None:
        """Warn of a fallback, unless that has been said."""
        first = object()
        if self._warned.setdefault(message, first) is first:  # atomic: several texts say it at once
            warn(message, FallbackWarning)

    def add(self, tally: Tally) -> None:
        """Count a generation that has ended."""
        with self._lock:
            self._sums = self._sums + tally

    def stats(self) -> Stats:
        """The statistics of all that have ended, together."""
        return self._sums.stats()
