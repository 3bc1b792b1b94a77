"""Owners of objects that llama.cpp makes: each object is freed exactly once, wherever Ctrl-C comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol


class Closable(Protocol):
    """An object that can be closed.

    If a signal handler's exception has interrupted ``close``, a further call frees the remaining parts. Else it does
    nothing.
    """

    def close(self) -> None:
        """Free everything that the object holds."""


class Once:
    """Frees an object of llama.cpp's once, however often ``close`` is called.

    A signal handler may raise between any two steps of Python, so also between freeing an object and noting that it is
    freed. Here both are one step: ``next`` of a ``map`` takes an item of the list, and calls the function with it.

    Args:
        free: a C function that frees the object.
        held: a list with the object's address, or an empty list that gets the address later.
    """

    def __init__(self, free: Callable[[Any], object], held: list[Any]) -> None:
        self._freeing: Iterator[object] = map(free, held)

    def close(self) -> None:
        """Free the object, if it is not freed yet."""
        next(self._freeing, None)


class Owned(Once):
    """An object of llama.cpp's, such as a context. It is freed by ``close``, or when this owner is deleted.

    Making the object and keeping its address are one step, too. Else Ctrl-C while a model loads would lose the model.

    Args:
        free: a C function that frees the object.
        make: a C function that makes the object.
        given: the arguments of ``make``.
        uses: Python objects that must live at least as long as the object.

    Attributes:
        address: the address of the object; 0 if llama.cpp could not make it.
    """

    _freeing = iter(())  # until `__init__` has replaced it, so that `close` can always be called

    def __init__(
        self, free: Callable[[Any], object], make: Callable[..., Any], *given: Any, uses: tuple[object, ...] = ()
    ) -> None:
        self._uses = uses
        held: list[int] = []
        super().__init__(free, held)
        held.extend(filter(None, map(make, *([argument] for argument in given))))
        self.address = held[0] if held else 0

    def __del__(self) -> None:
        """Free the object."""
        self.close()
