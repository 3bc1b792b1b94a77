"""Threads for work that must not block the event loop."""

from __future__ import annotations

import concurrent.futures
import functools
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

_Result = TypeVar("_Result")
_Task = tuple["concurrent.futures.Future[Any]", Callable[[], Any]]


class Threads(concurrent.futures.Executor):
    """At most `count` threads, started when there is work.

    A ``ThreadPoolExecutor`` is not used, because Python waits for it when the interpreter ends, and refuses further
    work from then on. A server in a daemon thread of a notebook would delay the end by its generation, and raise an
    error for each further request.

    Args:
        count: the most threads.
        name: prefix of the threads' names.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        weakref.finalize(self, _end, self._tasks, count).atexit = False

    def submit(
        self, function: Callable[..., _Result], /, *args: Any, **kwargs: Any
    ) -> concurrent.futures.Future[_Result]:
        """Queues a call, as the base class does. Only one thread at a time may call this."""
        if self._is_closed:
            raise RuntimeError("these threads are shut down")
        future: concurrent.futures.Future[_Result] = concurrent.futures.Future()
        self._tasks.put((future, functools.partial(function, *args, **kwargs)))
        if len(self._threads) < self._count:
            name = f"{self._name}-{len(self._threads)}"
            thread = threading.Thread(target=_work, args=(self._tasks,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuses further work, as the base class does. Submitted work is still done."""
        self._is_closed = True
        _end(self._tasks, self._count)
        if wait:
            for thread in self._threads:
                thread.join()


def _end(tasks: queue.SimpleQueue[_Task | None], count: int) -> None:
    for _ in range(count):
        tasks.put(None)


def _work(tasks: queue.SimpleQueue[_Task | None]) -> None:
    while (task := tasks.get()) is not None:
        future, call = task
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
        del task, future, call  # keeps no reference while it waits
