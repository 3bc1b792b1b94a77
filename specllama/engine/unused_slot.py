"""A slot for checking a request: the text is prepared and checked as in other slots, but nothing is decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from .position import Position
from .slot import Slot, UnderWay

if TYPE_CHECKING:
    from .engine import Engine


class TextBegins(Exception):  # noqa: N818  # it is no error: the request has passed all checks
    """Raised when a request has passed all checks: the next step would decode."""


class UnusedSlot(Slot):
    """A slot in which no text begins. Any number of threads may have one, also while texts are generated.

    Args:
        engine: the engine that would generate.
    """

    is_alone = False

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.account, engine.model, Position())

    def require_alone(self, what: str) -> NoReturn:
        """Called by code that would decode by itself, such as mirostat.

        Raises:
            TextBegins: always.
        """
        raise TextBegins

    def begin(self, generation: UnderWay) -> NoReturn:
        """Called by a text before it decodes.

        Raises:
            TextBegins: always.
        """
        raise TextBegins
