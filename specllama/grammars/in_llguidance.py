"""No thread is in llguidance while the interpreter ends.

llguidance gives up the GIL while it computes. Up to 3.13 Python ends a thread that wants the GIL back from an
interpreter that ends by ``pthread_exit``, which unwinds through Rust: the process dies.
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
        """Let no thread in but this one, and wait for those that are."""
        with self._changed:
            self._ended_by = threading.get_ident()
            self._changed.wait_for(lambda: self._under_way == 0, _LONGEST_WAIT)


_calls = _Calls()
atexit.register(_calls.end)

in_llguidance = _calls.one
"""A block in which llguidance may compute."""
