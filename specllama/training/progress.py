"""Who hears how far a training is."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Hears of it."""

    def note(self, text: str) -> None:
        """Something is said: a forecast, or what is done from here on."""

    def done(self, step: str, done: int, total: int) -> None:
        """So much of a step is done, of so much."""


class Silent:
    """Nobody hears."""

    def note(self, text: str) -> None:
        """See `Progress`."""

    def done(self, step: str, done: int, total: int) -> None:
        """See `Progress`."""


SILENT = Silent()
