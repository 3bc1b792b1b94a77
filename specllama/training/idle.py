"""Has a head learn from use while nobody needs the machine: a process of the lowest priority, ended when one does."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import filelock
import psutil

from specllama.backend.child import can_start, python_command
from specllama.backend.memory import free_memory
from specllama.engine import ask_for_room, fresh_texts, last_use, learn_dir, learned_head, measured_gain

QUIET = 300.0
"""The seconds after which a model counts as not used."""
_LOCK, _LOG = "learner.lock", "learner.log"
_POLL = 0.25  # seconds between two looks at the machine while the head learns
_REST = 2.0  # seconds between two looks while it does not
_CALM = 0.25  # the share of the processor that others use below which learning begins
_BUSY = 0.5  # the one above which it ends
_MEMORY = 8.0  # seconds over which these shares are averaged
_AGAIN = 600.0  # seconds until it is tried again after a failure
_LEAST_MEMORY = 1 << 28  # bytes that stay free
MAKES_WAY = 5.0
"""The seconds within which an `IdleLearner` has made way, on a machine that does other things besides."""


class Load:
    """The share of all processors that others than one process use, averaged over some seconds."""

    def __init__(self) -> None:
        self._at = time.monotonic()
        self._busy, self._all = _processor_seconds()
        self._own = 0.0
        self.share = 1.0  # until more is known

    def look(self, process: psutil.Process | None) -> float:
        """Measure. Returns the share, from 0 to 1.

        Args:
            process: whose own use does not count; None for none.
        """
        now, (busy, total), own = time.monotonic(), _processor_seconds(), _seconds_of(process)
        used = busy - self._busy - max(0.0, own - self._own)
        if total > self._all:
            share = min(1.0, max(0.0, used / (total - self._all)))
            kept = math.exp(-(now - self._at) / _MEMORY)
            self.share = kept * self.share + (1.0 - kept) * share
        self._at, self._busy, self._all, self._own = now, busy, total, own
        return self.share


def _processor_seconds() -> tuple[float, float]:
    """The seconds that all processors have worked so far, and all their seconds."""
    found = psutil.cpu_times()
    counted_twice = sum(getattr(found, name, 0.0) for name in ("guest", "guest_nice"))  # as user and nice, too
    total = sum(found) - counted_twice
    return total - found.idle - getattr(found, "iowait", 0.0), total


def _seconds_of(process: psutil.Process | None) -> float:
    try:
        if process is None:
            return 0.0
        # In a virtual environment of Windows the process is a launcher, whose child is Python.
        own = [process, *(process.children(recursive=True) if sys.platform == "win32" else [])]
        return sum(sum(one.cpu_times()[:2]) for one in own)
    except psutil.Error:
        return 0.0


def on_battery() -> bool:
    """Whether the machine has a battery, and runs on it."""
    find = getattr(psutil, "sensors_battery", None)  # not on every system
    found = None if find is None else find()
    return found is not None and found.power_plugged is False and (sys.platform != "linux" or _has_battery())


def _has_battery(supplies: Path = Path("/sys/class/power_supply")) -> bool:
    """Whether a battery is the machine's own, and not that of a mouse or keyboard, which psutil takes for it."""

    def said(supply: Path, name: str) -> str:
        try:
            return (supply / name).read_text().strip()
        except OSError:
            return ""

    return any(said(one, "type") == "Battery" and said(one, "scope") != "Device" for one in supplies.iterdir())


class IdleLearner:
    """Looks at the machine again and again, and has the head of a model learn while it is not needed.

    A learning that is ended goes on from its last checkpoint the next time. Of several programs with one model, one has
    the head learn.

    Args:
        model: the model's file.
        weights: the `Digest` of its weights.
        threads: the number of threads.
        quiet: how many seconds nobody must have asked the model.
        on_failure: is told why the head could not learn, each reason once.
        command: the command that learns; None for ``specllama learn MODEL --now``.

    Raises:
        RuntimeError: there is no Python program to learn with.
    """

    def __init__(
        self,
        model: str,
        weights: str,
        *,
        threads: int = 1,
        quiet: float = QUIET,
        on_failure: Callable[[str], object] = lambda text: None,
        command: Sequence[str] | None = None,
    ) -> None:
        self._model = os.path.abspath(model)
        self._weights = weights
        self._quiet = quiet
        self._warn = on_failure
        self._command = command or python_command(
            "from specllama.cli import main; sys.exit(main(sys.argv[1:]))",
            *("learn", self._model, "--now", "--make-way", "-t", str(threads)),
        )
        self._folder = learn_dir(weights)
        self._load = Load()
        self._child: subprocess.Popen[bytes] | None = None
        self._process: psutil.Process | None = None
        self._lock: filelock.BaseFileLock | None = None
        self._not_before = 0.0
        self._last_use = 0.0
        self._seen = -1.0  # when the folder had changed last as there was nothing to do
        self._tried = 0.0  # when the head had learned that was tried by whole calls
        self._said = ""

    @property
    def is_learning(self) -> bool:
        """Whether the head learns now."""
        return self._child is not None

    def run(self, closing: threading.Event) -> None:
        """Look, and have the head learn, until the event is set."""
        try:
            while not closing.wait(_POLL if self.is_learning else _REST):
                try:
                    self.look()
                except Exception as error:  # no process can be started, a folder cannot be read, ...
                    self._end()
                    self._failed(str(error))
        finally:
            self._end()

    def look(self) -> None:
        """Look once: begin, end, or notice the end of what learns."""
        share = self._load.look(self._process)
        if self._child is None:
            if self._may_begin(share) and self._has_work():
                self._begin()
        elif (code := self._child.poll()) is not None:
            self._end()
            if code == 0:
                self._tried = _learned_at(self._weights)
            else:
                self._failed(f"{self._last_words()} ({self._folder / _LOG})")
        elif free_memory() < _LEAST_MEMORY:
            self._end()
            self._not_before = time.monotonic() + _AGAIN
        elif last_use(self._folder) != self._last_use or share > _BUSY or on_battery():
            self._end()

    def _failed(self, why: str) -> None:
        self._not_before = time.monotonic() + _AGAIN
        if why != self._said:
            self._said = why
            self._warn(f"the draft could not learn from use: {why}")

    def _may_begin(self, share: float) -> bool:
        self._last_use = last_use(self._folder)
        since = time.time() - self._last_use
        is_quiet = since >= self._quiet or since < 0  # the clock was set back
        return is_quiet and share < _CALM and time.monotonic() >= self._not_before and not on_battery()

    def _has_work(self) -> bool:
        """Whether there is enough to learn, or a head whose gain is not known. Without any change it is not counted."""
        changed = _changed_at(self._folder)
        if changed == self._seen:
            return False
        head = learned_head(self._weights)
        is_new = head is not None and head.at != self._tried and measured_gain(self._model, str(head.path)) is None
        has_work = is_new or fresh_texts(self._weights, head).are_enough
        self._seen = -1.0 if has_work else changed
        return has_work

    def _begin(self) -> None:
        lock = filelock.FileLock(self._folder / _LOCK)
        try:
            lock.acquire(blocking=False)
        except filelock.Timeout:  # another program has the head learn
            self._not_before = time.monotonic() + _AGAIN / 10
            return
        self._lock = lock
        with open(self._folder / _LOG, "wb") as log:
            self._child = _started(self._command, log)
        with contextlib.suppress(psutil.Error):
            self._process = psutil.Process(self._child.pid)

    def _end(self) -> None:
        """End what learns, if it does. What it has learned since its last checkpoint is lost."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            assert self._child.stdin is not None
            self._child.stdin.close()
        self._child = self._process = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            lines = (self._folder / _LOG).read_text("utf-8", "replace").split("\n")
            return next((line for line in reversed(lines) if line.strip()), "it says nothing")
        return "it says nothing"


def _started(command: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,  # it ends by itself when its input ends: this process may be killed
        stdout=log,
        stderr=log,
        start_new_session=True,  # the terminal's Ctrl-C does not reach it
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
    )


def _learned_at(weights: str) -> float:
    head = learned_head(weights)
    return 0.0 if head is None else head.at


def _changed_at(folder: Path) -> float:
    """When a text was last written or deleted in a folder."""
    try:
        return os.stat(folder).st_mtime
    except OSError:
        return 0.0


@contextlib.contextmanager
def in_its_place(weights: str) -> Iterator[None]:
    """A context manager in which no `IdleLearner` has a head of a model learn: it makes way for this process.

    Args:
        weights: the `Digest` of the model's weights.
    """
    folder = learn_dir(weights)
    ask_for_room(folder)
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # a Timeout is one: then the training says that there is another one
            stack.enter_context(filelock.FileLock(folder / _LOCK).acquire(timeout=MAKES_WAY))
        yield


def make_way() -> None:
    """Give this process the lowest priority, and end it when its input ends: then the process that began it is gone.

    Where memory lacks, Linux ends it first.
    """
    process = psutil.Process()
    with contextlib.suppress(psutil.Error, OSError):
        process.nice(psutil.IDLE_PRIORITY_CLASS if sys.platform == "win32" else 19)
    with contextlib.suppress(psutil.Error, OSError, AttributeError):
        process.ionice(psutil.IOPRIO_VERYLOW if sys.platform == "win32" else psutil.IOPRIO_CLASS_IDLE)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    threading.Thread(target=_end_with_input, daemon=True).start()


def _end_with_input() -> None:
    with contextlib.suppress(OSError, ValueError):
        while os.read(0, 1):
            pass
    os._exit(1)


@contextlib.contextmanager
def learning_meanwhile(learner: IdleLearner) -> Iterator[None]:
    """A context manager in which a thread has a head learn."""
    closing = threading.Event()
    thread = threading.Thread(target=learner.run, args=[closing], name="idle-learner", daemon=True)
    thread.start()
    try:
        yield
    finally:
        closing.set()
        thread.join()


def can_learn() -> bool:
    """Whether what learning needs is installed."""
    return can_start() and all(importlib.util.find_spec(name) is not None for name in ("torch", "gguf"))
