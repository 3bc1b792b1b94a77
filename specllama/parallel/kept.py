"""A Llama whose weights stay while others work on them, even if its owner closes it meanwhile."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator

from specllama.backend.base_class import BaseLlama


class _Keep:
    """What frees a Llama, taken out of it. Closing it frees its context alone, until the last user has left."""

    def __init__(self, llama: BaseLlama) -> None:
        self.num_users = 0
        self._is_closed = False
        self._rest: contextlib.ExitStack = llama._stack.pop_all()
        llama._stack.callback(llama._ctx.close)
        llama._stack.callback(self._note)

    def end(self, llama: BaseLlama) -> None:
        """Free what its owner has closed meanwhile, or give it back."""
        if self._is_closed:
            self._rest.close()
        else:
            llama._stack.pop_all()
            llama._stack.callback(self._rest.close)

    def _note(self) -> None:
        self._is_closed = True


_LOCK = threading.Lock()
_KEEPS: weakref.WeakKeyDictionary[BaseLlama, _Keep] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def kept(llama: BaseLlama) -> Iterator[None]:
    """Within the block the weights of an open Llama, and what belongs to them, are there."""
    with _LOCK:
        keep = _KEEPS.get(llama)
        if keep is None:
            keep = _KEEPS[llama] = _Keep(llama)
        keep.num_users += 1
    try:
        yield
    finally:
        with _LOCK:
            keep.num_users -= 1
            if not keep.num_users:
                del _KEEPS[llama]
                keep.end(llama)
