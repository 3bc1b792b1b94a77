"""Threads that read what one of them may free."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from specllama.engine.forks import told_of_forks
from specllama.engine.slot import raise_busy


class Readers:
    """A context manager for those who read; ``freeing`` waits for them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._threads: list[int] = []
        self._is_freeing = False
        told_of_forks(self)

    def leave_parent(self) -> None:
        """In a forked child nobody else reads."""
        self._changed, self._is_freeing = threading.Condition(), False
        self._threads = [number for number in self._threads if number == threading.get_ident()]

    def __enter__(self) -> None:
        """Read."""
        own = threading.get_ident()
        with self._changed:  # who reads already may ask for more
            self._changed.wait_for(lambda: not self._is_freeing or own in self._threads)
            self._threads.append(own)

    def __exit__(self, *exception: object) -> None:
        """No longer."""
        with self._changed:
            self._threads.remove(threading.get_ident())
            self._changed.notify_all()

    def require_outside(self) -> None:
        """Refuse what waits for the readers to one of them.

        Raises:
            BusyError: the calling thread reads; this is a signal handler, say.
        """
        with self._changed:
            if threading.get_ident() in self._threads:
                raise_busy()

    @contextlib.contextmanager
    def freeing(self) -> Iterator[None]:
        """Wait until nobody reads. Nobody begins to meanwhile, and within the block.

        Raises:
            BusyError: the calling thread reads.
        """
        with self._changed:
            self.require_outside()
            self._is_freeing = True
            try:
                self._changed.wait_for(lambda: not self._threads)
                yield
            finally:
                self._is_freeing = False
                self._changed.notify_all()
