"""A listener: it is notified of a generation's beginning and end, and may stop the generation."""

from __future__ import annotations

from collections.abc import Callable

from specllama.stats import Tally


class Stopped(Exception):  # noqa: N818  # the name has no "Error": the caller asked for the stop
    """Raised by `poll` of a listener to stop the generation. The caches are at a committed position then."""


class Listener:
    """Is notified of the generations of one or several requests. Its methods do nothing; override them."""

    def poll(self) -> None:
        """Called between rounds and prompt chunks. An exception that it raises ends the text."""

    def begin(self, tally: Callable[[], Tally]) -> None:
        """A generation has begun. Any thread may call `tally` for its statistics so far."""

    def end(self, tally: Tally) -> None:
        """A generation that had begun has ended, with these statistics."""


SILENT = Listener()
"""A listener that does nothing."""
