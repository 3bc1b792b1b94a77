"""A slot that finds out whether a text can begin: all of it is prepared and checked, and nothing is decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from .position import Position
from .slot import Slot, UnderWay

if TYPE_CHECKING:
    from .engine import Engine


class TextBegins(Exception):  # noqa: N818  # it is no error: all is well until here
    """What was asked can begin: its next step would decode."""


class UnusedSlot(Slot):
    """A slot in which no text begins. Any number of threads may have one, also while texts are generated.

    Args:
        engine: the engine that would generate.
    """

    is_alone = False

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.account, engine.model, Position())

    def require_alone(self, what: str) -> NoReturn:
        """Called by what decodes by itself.

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
