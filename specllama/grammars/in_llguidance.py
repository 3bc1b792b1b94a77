"""Makes sure that no thread is in llguidance while the interpreter ends.

llguidance releases the GIL while it computes. If the interpreter ends meanwhile, Python (up to 3.13) ends the thread by
``pthread_exit`` when the thread wants the GIL back. ``pthread_exit`` unwinds through Rust, and the process dies.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
from collections.abc import Iterator

_LONGEST_WAIT = 3.0  # the most seconds that the end of the interpreter waits for calls


class _Calls:
    """The calls of llguidance that are under way.

    No Condition is used: its methods are Python code, and Ctrl-C in one of them would leave the lock locked for good.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way = 0
        self._ended_by: int | None = None  # the thread that ends the interpreter

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """A block in which llguidance is called. Once the interpreter ends, only the ending thread can enter."""
        while not self._has_entered():
            time.sleep(_LONGEST_WAIT)
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1

    def _has_entered(self) -> bool:
        with self._lock:
            may_enter = self._ended_by in (None, threading.get_ident())
            self._under_way += may_enter
            return may_enter

    def end(self) -> None:
        """Called when the interpreter ends: let no other thread enter a block, and wait for threads within."""
        with self._lock:
            self._ended_by = threading.get_ident()
        last = time.monotonic() + _LONGEST_WAIT
        while self._under_way and time.monotonic() < last:
            time.sleep(0.001)


_calls = _Calls()
atexit.register(_calls.end)

in_llguidance = _calls.one
"""A context manager, also usable as a decorator, for all code that calls llguidance."""
