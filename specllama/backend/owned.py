"""Owners of what llama.cpp makes: it is freed once, wherever Ctrl-C comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol


class Closable(Protocol):
    """What can be closed.

    A further ``close`` goes on where an exception of a signal handler has ended the one before, or does nothing.
    """

    def close(self) -> None:
        """Free what it has."""


class Once:
    """Frees something of llama.cpp's once, however often ``close`` is called.

    A signal handler may raise between any two steps of Python, so also between freeing something and noting that it is
    freed. Here both are one step: ``next`` of a ``map`` takes an item of the list, and calls the function with it.

    Args:
        free: a function of C that frees it.
        held: a list that has it, or gets it later.
    """

    def __init__(self, free: Callable[[Any], object], held: list[Any]) -> None:
        self._freeing: Iterator[object] = map(free, held)

    def close(self) -> None:
        """Free it."""
        next(self._freeing, None)


class Owned(Once):
    """Something that llama.cpp makes for us. It is freed by ``close``, or when this object is deleted.

    Making it and keeping it are one step, too. Else Ctrl-C while a model loads would lose the model.

    Args:
        free: a function of C that frees it.
        make: a function of C that makes it.
        given: the arguments of ``make``.
        uses: what it uses. These objects live at least as long.

    Attributes:
        address: where it is; 0 if llama.cpp has made none.
    """

    _freeing = iter(())  # until there is something to free

    def __init__(
        self, free: Callable[[Any], object], make: Callable[..., Any], *given: Any, uses: tuple[object, ...] = ()
    ) -> None:
        self._uses = uses
        held: list[int] = []
        super().__init__(free, held)
        held.extend(filter(None, map(make, *([argument] for argument in given))))
        self.address = held[0] if held else 0

    def __del__(self) -> None:
        """Free it."""
        self.close()
