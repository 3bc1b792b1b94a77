"""A thread that writes to the disk while texts are generated."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
import time
from typing import Any

_MOST_WAITING = 256 << 20  # bytes that wait to be written


class Writer:
    """Writes in a thread of its own, one thing after the other. The interpreter's end waits for it.

    Args:
        name: what is written, for the name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = f"specllama-{name}"
        self._executor: concurrent.futures.ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._waiting: list[tuple[concurrent.futures.Future[Any], int]] = []

    def has_room(self, size: int, latest: float) -> bool:
        """Whether so many bytes may wait, too.

        Args:
            size: the bytes.
            latest: until when to wait for room, by ``time.monotonic``.
        """
        while (first := self._first(size)) is not None:
            left = latest - time.monotonic()
            if left <= 0:
                return False
            concurrent.futures.wait([first], timeout=left)
        return True

    def _first(self, size: int) -> concurrent.futures.Future[Any] | None:
        """What is to be done before so many bytes may wait; None if they may."""
        with self._lock:
            self._waiting = [waiting for waiting in self._waiting if not waiting[0].done()]
            if not self._waiting or sum(each for _, each in self._waiting) + size <= _MOST_WAITING:
                return None
            return self._waiting[0][0]

    def submit(self, size: int, function: Any, *args: Any) -> None:
        """Have a function called, which writes so many bytes. Nothing happens while the interpreter ends."""
        with self._lock, contextlib.suppress(RuntimeError):
            if self._executor is None:
                self._executor = concurrent.futures.ThreadPoolExecutor(1, self._name)
            self._waiting.append((self._executor.submit(function, *args), size))

    def flush(self) -> None:
        """Wait until all is written."""
        with self._lock:
            waiting = [job for job, _ in self._waiting]
        for job in concurrent.futures.as_completed(waiting):
            job.result()
