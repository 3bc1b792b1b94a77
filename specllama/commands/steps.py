"""Shows the progress of a measurement on stderr, with the time that is left."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from specllama.backend.streams import show


class Steps:
    """Progress as a bar on a terminal, and as lines elsewhere.

    The bar is drawn between steps only: a thread that draws in the background would disturb the measurement.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._has_bar = console.is_terminal and not console.is_dumb_terminal
        self._started = time.monotonic()
        self._before: int | None = None
        name, left = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[left]}")
        columns = (name, BarColumn(), MofNCompleteColumn(), left)
        self._bar = Progress(*columns, console=console, transient=True, auto_refresh=False)
        self._task = self._bar.add_task("", total=None, left="")

    def note(self, text: str) -> None:
        """Print a line, and estimate the time left from here on, since another kind of step begins."""
        self._print(text)
        self._started, self._before = time.monotonic(), None

    def done(self, name: str, done: int, total: int, line: str | None) -> None:
        """Note that a step is done.

        The time left is estimated from the steps that were done since the last note. The first call after a note says
        where the work begins: an earlier process may have done a part.

        Args:
            name: the text beside the bar.
            done: how many steps are done.
            total: how many steps there are.
            line: the text to print if there is no bar; None for none.
        """
        if self._before is None:
            self._before = 0
            if done > 1:  # an earlier process may have done these steps
                self._started, self._before = time.monotonic(), done
        here, seconds = done - self._before, time.monotonic() - self._started
        left = f"{duration(seconds / here * (total - done))} left" if here > 0 else ""
        if self._has_bar:
            self._bar.start()
            self._bar.update(self._task, description=name, completed=done, total=total, left=left)
            self._bar.refresh()
        elif line is not None:
            self._print(f"{done}/{total} {line}" + (f"; {left}" if left else ""))

    def stop(self) -> None:
        """Remove the bar, so that results can be printed."""
        if self._has_bar:  # stopping a bar that was not shown would print an empty line
            self._bar.stop()

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class Reporter:
    """Shows the progress of a training on stderr: each step on a terminal, and every tenth of a step elsewhere."""

    def __init__(self, bar: Steps) -> None:
        self._bar = bar
        self._step, self._tenths = "", 0

    def note(self, text: str) -> None:
        """See `training.progress.Progress`."""
        self._bar.note(text)
        self._step = ""

    def done(self, step: str, done: int, total: int, name: str = "") -> None:
        """See `training.progress.Progress`. `name` replaces the step's name in the output."""
        if step != self._step:
            self._step, self._tenths = step, 0
        before, self._tenths = self._tenths, done * 10 // max(1, total)
        self._bar.done(name or step, max(1, done), max(1, total), (name or step) if self._tenths > before else None)

    def answered(self, name: str, done: int, total: int) -> None:
        """Note that one more answer of the comparison is done."""
        self.done("answers", done, total, f"against {name}" if name.startswith("plain") else f"as {name}")


@contextlib.contextmanager
def errors_reported(what: str) -> Iterator[None]:
    """A context manager for a step after long work. If the step fails, stderr gets the error, and the command goes on.

    Args:
        what: a sentence that says what could not be done.
    """
    try:
        yield
    except Exception as error:  # whatever the error, the long work is done, and must not look as if it was lost
        why = " ".join(str(error).split()) or type(error).__name__
        show(f"specllama: {what}: {why}\n")


@contextlib.contextmanager
def steps() -> Iterator[Steps]:
    """A context manager that shows progress on stderr."""
    progress = Steps(Console(stderr=True))
    try:
        yield progress
    finally:
        progress.stop()


def in_tenths(progress: Steps) -> Callable[[str, int, int], None]:
    """A function of (step, done, total) that shows each step on a terminal, and every tenth of the way elsewhere."""
    tenths = 0

    def show(step: str, done: int, total: int) -> None:
        nonlocal tenths
        before, tenths = tenths, done * 10 // total
        progress.done(step, done, total, step if tenths > before else None)

    return show


def duration(seconds: float) -> str:
    """An estimated time in words."""
    if seconds < 90:
        return f"about {seconds:.0f} s"
    minutes = seconds / 60
    return f"about {minutes:.0f} min" if minutes < 90 else f"about {minutes / 60:.1f} h"
