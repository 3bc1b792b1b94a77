"""Interfaces for following the progress of a training."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """The receiver of a training's progress."""

    def note(self, text: str) -> None:
        """A message for the user, such as a forecast, or the name of the next step."""

    def done(self, step: str, done: int, total: int) -> None:
        """How much of a step is done: `done` of `total`."""


class Silent:
    """A `Progress` that shows nothing."""

    def note(self, text: str) -> None:
        """Show nothing."""

    def done(self, step: str, done: int, total: int) -> None:
        """Show nothing."""


SILENT = Silent()
