"""Makes sure that no thread is in llguidance while the interpreter ends.

llguidance releases the GIL while it computes. If the interpreter ends meanwhile, Python (up to 3.13) ends the thread by
``pthread_exit`` when it wants the GIL back. That unwinds through Rust, and the process dies.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections.abc import Iterator

_LONGEST_WAIT = 3.0  # seconds


class _Calls:
    """The calls of llguidance that are under way."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._under_way = 0
        self._ended_by: int | None = None  # the thread that ends the interpreter

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """A block in which llguidance is called. Once the interpreter ends, no other thread gets in."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended_by in (None, threading.get_ident()))
            self._under_way += 1
        try:
            yield
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()

    def end(self) -> None:
        """Let no other thread in any more, and wait for those that are in."""
        with self._changed:
            self._ended_by = threading.get_ident()
            self._changed.wait_for(lambda: self._under_way == 0, _LONGEST_WAIT)


_calls = _Calls()
atexit.register(_calls.end)

in_llguidance = _calls.one
"""A block, or a decorator, within which llguidance may be called."""
