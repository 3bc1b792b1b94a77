"""What the texts of one engine share: default options, earlier answers, given warnings, and summed statistics."""

from __future__ import annotations

import threading

from specllama.stats import Stats, Tally
from specllama.warn import warn

from .earlier_answers import EarlierAnswers
from .examples.store import ExampleStore
from .options import FallbackWarning, Options


class Account:
    """The account of an engine, which all its slots share. Any thread may use it.

    Attributes:
        options: how to speculate, unless a request says otherwise.
        earlier: the earlier answers, in which lookup searches; empty unless the user has asked to keep them.
        examples: what a head can learn from the texts; None unless the user has asked to keep it.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.earlier = EarlierAnswers()
        self.examples: ExampleStore | None = None
        self._lock = threading.Lock()
        self._warned: dict[str, object] = {}
        self._sums = Tally()

    def warn_once(self, message: str) -> None:
        """Warn of a fallback, unless this warning was given before."""
        first = object()
        if self._warned.setdefault(message, first) is first:  # atomic: several texts may warn at once
            warn(message, FallbackWarning)

    def note_use(self) -> None:
        """Note that a text is decoded now, if something learns while none is."""
        if self.examples is not None:
            self.examples.note_use()

    def add(self, tally: Tally) -> None:
        """Add the statistics of a generation that has ended."""
        with self._lock:
            self._sums = self._sums + tally

    def stats(self) -> Stats:
        """The statistics of all generations that have ended, together."""
        return self._sums.stats()
