"""Threads for texts. They are started, ended and waited for so that Ctrl-C may come anywhere."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable

_SOON = 0.001  # seconds between two looks at threads that are about to end

Task = Callable[[], object]


class Threads:
    """Some threads that call one function.

    The main thread may wait for these threads. So nothing here uses a ``threading.Condition``: a Condition's methods
    are Python code, and Ctrl-C in one of them would leave the Condition locked for good, or raise "release unlocked
    lock". ``Thread.start`` and ``Thread.join`` use such locks, too: nobody calls `start` where Ctrl-C may come.

    The threads are daemons, and not threads of a ``ThreadPoolExecutor``: Python waits for an executor's threads when
    the interpreter ends, and refuses further work from then on. A server in a daemon thread of a notebook would then
    delay the interpreter's end until its text ends.

    Args:
        count: how many threads.
        name: prefix of the threads' names.

    Attributes:
        process: the id of the process that has the threads. A forked child has none of them.
        is_ended: whether the threads are to end.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._threads: list[threading.Thread] = []
        self._is_starting = False
        self.process = os.getpid()
        self.is_ended = False

    def start(self, run: Callable[[], None]) -> None:
        """Start the threads, unless `end` was called.

        Args:
            run: the function that each thread calls. It should return soon after `is_ended` is set.

        Raises:
            RuntimeError: the system has no room for so many threads.
        """
        self._is_starting = True  # set before `is_ended` is read, because `end` sets `is_ended` before it reads this
        try:
            for number in range(self._count):
                if self.is_ended:
                    break
                thread = threading.Thread(target=run, name=f"{self._name}-{number}", daemon=True)
                self._threads.append(thread)
                thread.start()
        finally:
            self._is_starting = False

    def end(self, patience: float = math.inf) -> None:
        """Have the threads end, and wait for their end, but for no more than `patience` seconds.

        If one of the threads calls this, as a source of prompts may, that thread does not wait for itself.
        """
        self.is_ended = True
        last = time.monotonic() + patience
        while self.process == os.getpid() and self._has_threads() and time.monotonic() < last:
            time.sleep(_SOON)

    def _has_threads(self) -> bool:
        others = {*self._threads} - {threading.current_thread()}
        return self._is_starting or not others.isdisjoint(threading.enumerate())


class Line:
    """A queue of tasks, and threads that take tasks from it in order. The threads start with the first task.

    If this object is dropped, the threads end.

    Args:
        count: how many threads.
        name: prefix of the threads' names.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._threads = Threads(count, name)
        self._has_begun = False
        weakref.finalize(self, _end, self._tasks, count).atexit = False

    def put(self, task: Task) -> None:
        """Have one of the threads call a task. Its exceptions are dropped. Only one thread at a time may call `put`.

        Raises:
            RuntimeError: the line is closed.
        """
        if self._threads.is_ended:
            raise RuntimeError("these threads are shut down")
        if not self._has_begun:
            self._threads.start(functools.partial(_do_all, self._tasks))
            self._has_begun = True
        self._tasks.put(task)

    def close(self, patience: float = math.inf) -> None:
        """Take no further tasks, and finish the present ones, but wait for no more than `patience` seconds."""
        _end(self._tasks, self._count)
        self._threads.end(patience)


def _end(tasks: queue.SimpleQueue[Task | None], count: int) -> None:
    for _ in range(count):
        tasks.put(None)


def _do_all(tasks: queue.SimpleQueue[Task | None]) -> None:
    while (task := tasks.get()) is not None:
        with contextlib.suppress(BaseException):  # the thread goes on with the other tasks
            task()
        del task  # so that the thread keeps no reference to the task while it waits
