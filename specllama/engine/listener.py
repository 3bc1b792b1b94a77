"""A listener: it is notified of a generation, and may end it."""

from __future__ import annotations

from collections.abc import Callable

from specllama.stats import Tally


class Stopped(Exception):  # noqa: N818  # it is not called an error, because the caller asked for it
    """The listener of a generation stopped it. The caches are at a committed position."""


class Listener:
    """Is notified of the generations of one or several requests. Its methods do nothing; override them."""

    def poll(self) -> None:
        """Called between rounds and prompt chunks. What it raises ends the text."""

    def begin(self, tally: Callable[[], Tally]) -> None:
        """A generation has begun; `tally` gives its numbers so far, from any thread."""

    def end(self, tally: Tally) -> None:
        """A generation that had begun has ended, with these numbers."""


SILENT = Listener()
"""A listener that does nothing."""
