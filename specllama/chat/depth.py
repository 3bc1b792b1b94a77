"""How deep the lists and dicts of a request may be nested."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

MOST_LEVELS = 128
"""The most levels. Functions that read a request call themselves a few times a level; Python allows 1,000 calls."""


def require_few_levels(value: Any, what: str) -> None:
    """Check how deep a value is nested, before a recursive function reads the value.

    Args:
        value: a value that a caller or a client has given.
        what: the value's name, for the message.

    Raises:
        ValueError: lists and dicts are nested in more than ``MOST_LEVELS`` levels.
    """
    levels, inner = 0, _nested([value])
    while inner:
        levels += 1
        if levels > MOST_LEVELS:
            raise_too_deep(what)
        inner = _nested(part for each in inner for part in (each.values() if isinstance(each, Mapping) else each))


def raise_too_deep(what: str) -> NoReturn:
    """Say that a value is nested too deeply.

    Raises:
        ValueError: always.
    """
    raise ValueError(f"{what} is nested too deeply: it may have {MOST_LEVELS} levels; give it fewer") from None


def _nested(values: Iterable[Any]) -> list[Any]:
    """The lists and dicts among some values. An object that is there several times is given once."""
    return [*{id(value): value for value in values if isinstance(value, (list, tuple, Mapping))}.values()]
