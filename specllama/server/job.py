"""One request's work on the model."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Callable, Generator
from typing import Any, Literal

from specllama.drop_in.watch import Watch
from specllama.engine.listener import Stopped
from specllama.stats import Stats

Item = dict[str, Any]
"""A response, or a chunk of a stream."""
Work = Callable[[Watch], Generator[Item, None, None]]
"""Generates the items, in a thread of the worker."""


class Job:
    """Work that runs in a thread of the worker. Iterating in the event loop gives its items, or raises its error.

    Items wait here without a limit, so that a slow client does not block the model. There are never more than the
    contexts of all its texts have tokens.
    """

    def __init__(self, work: Work) -> None:
        self._work: Work | None = work  # it holds the request, which may be large
        self._watch = Watch()
        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[Item | Exception] = asyncio.Queue()
        self._last: Exception = StopAsyncIteration()
        self._future: concurrent.futures.Future[None] | None = None
        self.outcome: Literal["completed", "failed", "stopped"] = "stopped"
        """How the job ended; valid only after the end."""

    def submit_to(self, threads: concurrent.futures.Executor, ended: Callable[[Job], None]) -> None:
        """Queues the work. `ended` is called in the event loop when the work has ended, or was stopped before it began.

        The iteration ends only after that: a client that has seen the end finds the model free.
        """
        self._future = threads.submit(self._run)
        self._future.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._end, ended))

    def stop(self, reason: Exception | None = None) -> None:
        """Ends the job within a round, or before it has begun. The iteration raises `reason`, by default Stopped."""
        self._watch.stop()
        self._arrived.put_nowait(reason or Stopped("the client has left"))
        if self._future is not None and self._future.cancel():
            self._work = None  # a queue holds this object until a thread is free

    def stats(self) -> Stats:
        """Statistics so far."""
        return self._watch.stats()

    @property
    def first_token_at(self) -> float | None:
        """The time of the first token, by ``time.monotonic``; known once a text has ended."""
        return self._watch.first_token_at

    def __aiter__(self) -> Job:
        return self

    async def __anext__(self) -> Item:
        arrived = await self._arrived.get()
        if isinstance(arrived, Exception):
            raise arrived
        return arrived

    def _run(self) -> None:
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

    def _post(self, item: Item) -> None:
        self._loop.call_soon_threadsafe(self._arrived.put_nowait, item)

    def _end(self, ended: Callable[[Job], None]) -> None:
        self._future = None  # it holds this object
        ended(self)
        self._arrived.put_nowait(self._last)
