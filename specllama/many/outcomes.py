"""Many texts under way: threads that use the slots, and the texts' outcomes as they end."""

from __future__ import annotations

import _thread
import dataclasses
import math
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, cast

from specllama.drop_in.view import EngineLlama
from specllama.drop_in.watch import Watch
from specllama.engine.forks import raise_forked
from specllama.engine.listener import Stopped
from specllama.engine.model import closed
from specllama.engine.slot import Slot
from specllama.stats import Stats

_CLOSING = 0.1  # seconds between two checks whether the outcomes were closed
_FULL = 0.01  # seconds between two checks whether an outcome was read
_PATIENCE = 0.7  # seconds for which Ctrl-C waits for the threads, which end as soon as they can
_SOON = 0.001  # seconds between two looks at the threads that are about to end


class Job(NamedTuple):
    """How one of many texts is generated, and where.

    Attributes:
        run: generates the text in a slot. The watch is its listener.
        is_alone: whether only the Llama's own context can generate it.
    """

    run: Callable[[Slot, Watch], dict[str, Any]]
    is_alone: bool = False


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of one text: a response or an error."""

    index: int
    """The index of the prompt."""
    response: dict[str, Any] | None
    """What ``create_completion`` or ``create_chat_completion`` returns; None after an error."""
    error: Exception | None
    """The error of this text; None if it did not fail. An error does not affect other texts."""
    stats: Stats
    """Statistics of this text alone. Each text of a batch has an equal part of the batch's time."""

    @property
    def text(self) -> str:
        """The text of the answer.

        Raises:
            Exception: the error, if there is one.
        """
        if self.error is not None:
            raise self.error
        choice = (self.response or {})["choices"][0]
        return str(choice["message"]["content"] or "" if "message" in choice else choice["text"])


class _Work:
    """The work of the threads, and what they share with the reader of the outcomes.

    The threads hold this object and not the reader's, so that a reader that is dropped ends them. Nothing here has a
    Condition: its methods are Python code, and Ctrl-C in one of them would leave it locked for good, or raise "release
    unlocked lock". ``Thread.start`` and ``Thread.join`` have such locks, too: the reader's thread calls neither.
    """

    def __init__(self, llama: EngineLlama, count: int, jobs: Iterable[Job]) -> None:
        self._llama = llama  # this may be the only reference to it
        self._count = count
        self._jobs = enumerate(jobs)
        self._source = threading.Lock()  # the jobs may be made by a generator
        self._watches: dict[int, Watch] = {}
        self.source_error: BaseException | None = None  # after an error no more jobs are read
        self.ended: queue.SimpleQueue[Outcome | BaseException | None] = queue.SimpleQueue()
        self.is_closed = False
        self.process = os.getpid()
        self._threads: list[threading.Thread] = []
        self._is_starting = False

    def end(self, patience: float) -> None:
        """End the texts under way, and begin no more. Waits for the threads, but for no more than `patience` seconds.

        A thread that has called this, as the source of the jobs may, is not waited for.
        """
        self.is_closed = True
        for watch in list(self._watches.values()):
            watch.stop()
        last = time.monotonic() + patience
        while self.process == os.getpid() and self._has_threads() and time.monotonic() < last:
            time.sleep(_SOON)

    def _has_threads(self) -> bool:
        others = {*self._threads} - {threading.current_thread()}
        return self._is_starting or not others.isdisjoint(threading.enumerate())

    def start(self) -> None:
        """Start the threads. It is called in a thread of its own, to which no signal comes."""
        self._is_starting = True  # set before `is_closed` is read: `end` sets and reads them the other way round
        try:
            for number in range(self._count):
                if self.is_closed:
                    break
                thread = threading.Thread(target=self._run, name=f"specllama-text-{number}", daemon=True)
                self._threads.append(thread)
                thread.start()
        except BaseException as error:
            self.ended.put(error)
        finally:
            self._is_starting = False

    def _run(self) -> None:
        """Generate texts until there are no more jobs. Each thread runs this, and puts None behind its last outcome."""
        try:
            while not self.is_closed:
                if not self._source.acquire(timeout=_CLOSING):
                    continue
                try:
                    number, job = (-1, None) if self.source_error else next(self._jobs, (-1, None))
                except BaseException as error:
                    self.source_error = error
                    break
                finally:
                    self._source.release()
                if job is None:
                    break
                self._put(self._outcome(number, job))
        except Stopped:
            pass
        except BaseException as error:
            self._put(error)
        self.ended.put(None)

    def _outcome(self, number: int, job: Job) -> Outcome:
        watch = self._watches[number] = Watch()
        try:
            if self.is_closed:
                watch.stop()
            texts = self._llama.engine.texts
            if job.is_alone:
                taken = texts.beside(watch.poll, watch.stop)
            else:
                taken = texts.taken(self._count, watch.poll, stop=watch.stop)
            with taken as slot:
                response = job.run(slot, watch)
                return Outcome(number, response, None, watch.stats())
        except Stopped:
            if self.is_closed:
                raise
            return Outcome(number, None, closed(), watch.stats())  # whoever has closed the Llama has stopped the text
        except Exception as error:
            return Outcome(number, None, error, watch.stats())
        finally:
            del self._watches[number]

    def _put(self, ended: Outcome | BaseException) -> None:
        while self.ended.qsize() >= 2 * self._count and not self.is_closed:
            time.sleep(_FULL)
        self.ended.put(ended)


class Outcomes(Iterator[Outcome]):
    """An iterator over the outcomes, in the order in which texts end. About two for each slot wait to be read.

    Read it to its end, close it, or drop it: the texts under way then end. ``close`` may be called from any thread. An
    exception in the source of the jobs is raised here once, after the outcomes of the jobs before it.
    """

    def __init__(self, llama: EngineLlama, count: int, jobs: Iterable[Job]) -> None:
        self._work = _Work(llama, count, jobs)
        self._interrupted = False
        self._num_threads = count
        self._num_working = 0  # threads that may still put something into the queue
        self._when_dropped = weakref.finalize(self, self._work.end, _PATIENCE)
        self._when_dropped.atexit = False

    def start(self) -> None:
        """Start the threads, unless they have been started. If this is interrupted, they end."""
        if self._num_working or self._work.is_closed:
            return
        try:
            self._num_working = self._num_threads
            _thread.start_new_thread(self._work.start, ())
        except BaseException as error:
            self._close_after(error)
            raise

    def __next__(self) -> Outcome:
        """The next outcome. After Ctrl-C here the outcomes are closed."""
        try:
            return self._next()
        except KeyboardInterrupt as error:
            self._close_after(error)
            raise

    def _next(self) -> Outcome:
        work = self._work
        if work.process != os.getpid():
            raise_forked()
        while self._num_working and not work.is_closed:
            ended = work.ended.get()
            if ended is None:
                self._num_working -= 1
            elif isinstance(ended, BaseException):
                self.close()
                raise ended
            else:
                return ended
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

    def __enter__(self) -> Outcomes:
        """The outcomes. The texts begin, and are closed at the end of the block."""
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the outcomes, as ``close`` does."""
        self._close_after(cast("BaseException | None", exception[1]))


def arguments_of(item: Any, name: str, common: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of one call: those that all calls share, and those of an item.

    Args:
        item: the value of the argument `name`; or a mapping of arguments, which take precedence over the common ones.
        name: ``prompt`` or ``messages``.
        common: arguments of every call.

    Raises:
        ValueError: a mapping without `name`, or one that asks for a stream.
        TypeError: an argument that only our own code can give.
    """
    own = dict(item) if isinstance(item, Mapping) else {name: item}
    if name not in own:
        raise ValueError(f"a mapping must have {name!r}, and may have other arguments: {sorted(own)!r:.100} has not")
    arguments = {**common, **own}
    for ours in ("self", "call"):
        if ours in arguments:
            raise TypeError(f"got an unexpected keyword argument {ours!r}")  # as of any unknown one
    if arguments.pop("stream", False):
        raise ValueError("stream=True is for all texts together: their outcomes come as they end")
    return arguments


def takes_the_model_alone(arguments: Mapping[str, Any]) -> bool:
    """Whether only the Llama's own context can generate the text (see ``Slot.require_alone``).

    Args:
        arguments: the arguments of ``create_completion`` or ``create_chat_completion``. They need not be valid.
    """
    scores_prompt = arguments.get("echo") and arguments.get("logprobs") is not None
    return bool(arguments.get("mirostat_mode") or scores_prompt)
