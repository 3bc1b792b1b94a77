"""The sum of a Llama's generations."""

from __future__ import annotations

import threading

from specllama.stats import Stats, Tally


class Total:
    """What all generations of a Llama and of its places have done together. Any thread may add to it, and read it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums = Tally()

    def add(self, tally: Tally) -> None:
        """Count a generation that has ended."""
        with self._lock:
            self._sums = self._sums + tally

    def stats(self) -> Stats:
        """The statistics of all that have ended."""
        return self._sums.stats()
