"""Runs several texts at once: threads take jobs, and hand over the items of the jobs as they come."""

from __future__ import annotations

import _thread
import contextlib
import dataclasses
import math
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from specllama.drop_in.watch import Watch
from specllama.engine.engine import Engine
from specllama.engine.forks import raise_forked
from specllama.engine.listener import Stopped
from specllama.engine.slot import Slot

from .threads import Threads

if TYPE_CHECKING:
    from typing_extensions import Self

_CLOSING = 0.1  # seconds between two checks whether the runner was closed
_FULL = 0.01  # seconds between two checks whether the reader has taken an item from a full queue
_PATIENCE = 0.7  # seconds for which Ctrl-C waits for the threads, which end as soon as they can

_Item = TypeVar("_Item")
_Give = Callable[[int, "Job"], Generator[_Item, None, None]]


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """One of several texts: the function that generates it, and the slot that it needs.

    Attributes:
        run: generates the text in a slot. The watch is its listener.
        is_alone: whether only the model's own context can generate the text.
        prompt: the text of the prompt. A slot is chosen that holds the beginning of this text.
        watch: follows the text, and stops it.
    """

    run: Callable[[Slot, Watch], Any]
    is_alone: bool = False
    prompt: str = ""
    watch: Watch = dataclasses.field(default_factory=Watch)

    def take(self, engine: Engine, count: int) -> contextlib.AbstractContextManager[Slot]:
        """Wait for a slot, and take it for a block.

        Args:
            engine: has the slots.
            count: how many texts run at once, as ``engine.texts.open`` has returned.

        Raises:
            Stopped: the watch was stopped.
            ClosedError: the model is closed, or being closed.
        """
        stop, poll = self.watch.stop, self.watch.poll
        return engine.texts.taken(count, poll, text=self.prompt, stop=stop, is_alone=self.is_alone)


class _Work(Generic[_Item]):
    """The state that the threads share with the `Runner`.

    The threads refer to this object and not to the `Runner`. So a runner that is dropped is freed, which ends the
    threads.
    """

    def __init__(self, count: int, jobs: Iterable[Job], give: _Give[_Item]) -> None:
        self._count = count
        self._jobs = enumerate(jobs)
        self._source = threading.Lock()  # only one thread at a time may ask a generator for the next job
        self._give = give  # may hold the only reference to the Llama
        self._watches: dict[int, Watch] = {}
        self.source_error: BaseException | None = None  # after an error no more jobs are read
        self.given: queue.SimpleQueue[_Item | BaseException | None] = queue.SimpleQueue()
        self.threads = Threads(count, "specllama-text")

    def start(self) -> None:
        """Start the threads. It is called in a thread of its own, to which no signal comes."""
        try:
            self.threads.start(self._run)
        except BaseException as error:
            self.given.put(error)

    def end(self, patience: float) -> None:
        """End the texts under way, and begin no more. Waits for the threads for no more than `patience` seconds."""
        self.threads.is_ended = True
        for watch in list(self._watches.values()):
            watch.stop()
        self.threads.end(patience)

    def _run(self) -> None:
        """Generate texts until there are no more jobs. Each thread runs this, and puts None behind its last item."""
        try:
            while (numbered := self._next_job()) is not None:
                self._generate(*numbered)
        except Stopped:
            pass
        except BaseException as error:
            self.given.put(error)
        self.given.put(None)

    def _next_job(self) -> tuple[int, Job] | None:
        while not self.threads.is_ended:
            if not self._source.acquire(timeout=_CLOSING):
                continue
            try:
                return None if self.source_error else next(self._jobs, None)
            except BaseException as error:
                self.source_error = error
            finally:
                self._source.release()
        return None

    def _generate(self, number: int, job: Job) -> None:
        self._watches[number] = job.watch
        try:
            if self.threads.is_ended:
                job.watch.stop()
            with contextlib.closing(self._give(number, job)) as items:
                for item in items:
                    while self.given.qsize() >= 2 * self._count and not self.threads.is_ended:
                        time.sleep(_FULL)
                    self.given.put(item)
        finally:
            del self._watches[number]


class Runner(Iterator[_Item]):
    """Runs jobs in threads. Iterating gives the jobs' items as they come. About two items for each thread wait unread.

    Read it to its end, close it, or drop it: the texts under way then end. ``close`` may be called from any thread. An
    error of a job ends all jobs, and is raised here. An error in the source of the jobs is raised here once, after the
    items of the jobs before it.

    Args:
        count: how many threads.
        jobs: the jobs, read as they are needed, by one thread at a time.
        give: yields the items of a job, given the job's number and the job. It runs in a thread, and must not refer to
            the runner.
    """

    def __init__(self, count: int, jobs: Iterable[Job], give: _Give[_Item]) -> None:
        self._work = _Work(count, jobs, give)
        self._interrupted = False
        self._num_threads = count
        self._num_working = 0  # threads that may still put something into the queue
        self._when_dropped = weakref.finalize(self, self._work.end, _PATIENCE)
        self._when_dropped.atexit = False

    def start(self) -> None:
        """Start the threads, unless they have been started. If Ctrl-C interrupts this call, the threads end."""
        if self._num_working or self._work.threads.is_ended:
            return
        try:
            self._num_working = self._num_threads
            _thread.start_new_thread(self._work.start, ())
        except BaseException as error:
            self._close_after(error)
            raise

    def __next__(self) -> _Item:
        """The next item. After Ctrl-C here the runner is closed."""
        try:
            return self._next()
        except KeyboardInterrupt as error:
            self._close_after(error)
            raise

    def _next(self) -> _Item:
        work = self._work
        if work.threads.process != os.getpid():
            raise_forked()
        while self._num_working and not work.threads.is_ended:
            given = work.given.get()
            if given is None:
                self._num_working -= 1
            elif isinstance(given, BaseException):
                self.close()
                raise given
            elif not work.threads.is_ended:  # else another thread has closed the runner
                return given
        self.close()
        if work.source_error is not None:
            error, work.source_error = work.source_error, None
            raise error
        raise StopIteration

    def close(self) -> None:
        """End the texts under way, and begin no more."""
        self._work.end(_PATIENCE if self._interrupted else math.inf)
        self._when_dropped.detach()

    def _close_after(self, error: BaseException | None) -> None:
        self._interrupted = self._interrupted or isinstance(error, KeyboardInterrupt)
        self.close()

    def __enter__(self) -> Self:
        """Start the texts, and return the runner. The end of the block closes the runner."""
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the runner, as ``close`` does."""
        self._close_after(cast("BaseException | None", exception[1]))
