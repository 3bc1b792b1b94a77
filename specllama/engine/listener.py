"""Who hears of a generation, and may end it."""

from __future__ import annotations

from collections.abc import Callable

from specllama.stats import Tally


class Stopped(Exception):  # noqa: N818  # no error: it was asked for
    """The listener of a generation stopped it. The caches are at a committed position."""


class Listener:
    """Hears of the generations of a request or of several, one after the other. This one does nothing."""

    def heed(self) -> None:
        """Called between rounds and prompt chunks. What it raises ends the text."""

    def begin(self, tally: Callable[[], Tally]) -> None:
        """A generation has begun; `tally` gives its numbers so far, from any thread."""

    def end(self, tally: Tally) -> None:
        """A generation that had begun has ended, with these numbers."""


SILENT = Listener()
"""Nobody."""
