"""One request's work on the model."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Generator
from typing import Any, Literal

from specllama.drop_in import Watch
from specllama.engine import Stopped
from specllama.stats import Stats

Item = dict[str, Any]
"""A response, or a chunk of a stream."""
Work = Callable[[Watch], Generator[Any, None, None]]
"""Generates the items, or the bytes of a stream's events, in a thread of the worker."""

_MOST_UNREAD = 16 << 20  # bytes of events; nearly every answer has less as a whole
_PATIENCE = 10.0  # seconds for which a text waits for a client that does not read. Other requests may wait for its slot


class Job:
    """Work that runs in a thread of the worker. Iterating in the event loop gives its items, or raises its error.

    Up to ``_MOST_UNREAD`` bytes of events wait here, so that a slow client does not block the model. Beyond this limit
    the work waits for the client, and stops if the client reads nothing for ``_PATIENCE`` seconds.

    Args:
        work: the work.
        ended: called in the event loop when the work has ended, or was stopped before it began. The iteration ends only
            after this call, so that a client that has seen the end finds the model free.
    """

    def __init__(self, work: Work, ended: Callable[[Job], None]) -> None:
        self._work: Work | None = work  # set to None as early as possible: it holds the request, which may be large
        self._ended = ended
        self._unbegun = threading.Lock()  # taken by the thread that begins the work, or stops it before it has begun
        self._watch = Watch()
        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[Any] = asyncio.Queue()
        self._unread = 0  # bytes in the queue
        self._is_stopped = False
        self._room = threading.Condition()  # notified when bytes were read, and when the job is stopped
        self._last: Exception = StopAsyncIteration()
        self.outcome: Literal["completed", "failed", "stopped"] = "stopped"
        """How the job ended; valid only after the end."""

    def run(self) -> None:
        """Does the work, unless the job was stopped before. Called in a thread of the worker."""
        if self._unbegun.acquire(blocking=False):
            try:
                self._generate()
            finally:
                self._loop.call_soon_threadsafe(self._end)

    def stop(self, reason: Exception | None = None) -> None:
        """Ends the job within a round, or before it has begun. The iteration raises `reason`, by default Stopped."""
        self._watch.stop()
        with self._room:
            self._is_stopped = True
            self._room.notify_all()
        self._arrived.put_nowait(reason or Stopped("the client has left"))
        if self._unbegun.acquire(blocking=False):
            self._work = None  # the worker's queue keeps this object until a thread is free
            self._loop.call_soon(self._end)

    def stats(self) -> Stats:
        """Statistics so far."""
        return self._watch.stats()

    @property
    def first_token_at(self) -> float | None:
        """The time of the first token, by ``time.monotonic``; known once a text has ended."""
        return self._watch.first_token_at

    def __aiter__(self) -> Job:
        return self

    async def __anext__(self) -> Any:
        arrived = await self._arrived.get()
        if isinstance(arrived, Exception):
            raise arrived
        with self._room:
            self._unread -= _size_of(arrived)
            self._room.notify_all()
        return arrived

    def _generate(self) -> None:
        work, self._work = self._work, None
        assert work is not None
        try:
            with contextlib.closing(work(self._watch)) as items:
                for item in items:
                    self._post(item)
            self.outcome = "completed"
        except Stopped as error:
            self._last = error
        except Exception as error:
            self._last, self.outcome = error, "failed"

    def _post(self, item: Any) -> None:
        with self._room:
            if not self._room.wait_for(lambda: self._unread < _MOST_UNREAD or self._is_stopped, _PATIENCE):
                raise Stopped(
                    f"nothing was read for {_PATIENCE:.0f} s while {self._unread} bytes of the answer waited: read it "
                    "faster, or ask for fewer texts or log-probabilities"
                )
            self._unread += _size_of(item)
        self._loop.call_soon_threadsafe(self._arrived.put_nowait, item)

    def _end(self) -> None:
        self._ended(self)
        self._arrived.put_nowait(self._last)


def _size_of(item: Any) -> int:
    """The bytes of an event; 0 for a whole response, which is not counted, because a job has only one."""
    return len(item) if isinstance(item, bytes) else 0
