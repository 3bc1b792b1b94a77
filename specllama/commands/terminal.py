"""How a model's text is printed, and progress and notes on stderr, so that stdout holds nothing but results."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.columns import Columns
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

# What a terminal obeys instead of showing it, but for tab and newline: C0 as Unicode's pictures of them, DEL, C1.
_CONTROLS = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"}
_CONTROLS |= dict.fromkeys(range(0x7F, 0xA0), "\ufffd")


STYLES = {"draft": "green", "lookup": "yellow", "correction": "bold red", "bonus": "bold cyan", "plain": ""}
"""How tokens are shown, by where they came from."""
_MEANINGS = {
    "draft": "drafted, accepted",
    "lookup": "looked up in the text, accepted",
    "correction": "the target's, after a rejection",
    "bonus": "the target's, after a draft accepted whole",
    "plain": "nothing was drafted",
}


def legend() -> Columns:
    """What the colours mean."""
    return Columns([Text(f"{origin}: {_MEANINGS[origin]}", STYLES[origin]) for origin in STYLES], padding=(0, 3))


def harmless(text: str) -> str:
    """A model's text with its control characters made visible: a terminal must not obey them."""
    return text.translate(_CONTROLS)


def print_piece(out: Console, piece: str, style: str = "") -> None:
    """Print a piece of a model's text: harmless on a terminal, as it is elsewhere."""
    shown = harmless(piece) if out.is_terminal else piece
    if out.is_terminal and style:
        out.print(Text(shown, style), end="", soft_wrap=True)
    else:  # rich would replace tabs
        print(shown, end="", file=out.file, flush=True)


class ProgressBar:
    """A listener (specllama.models.transfer.Listener) that draws one bar, for the step it heard of last."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None
        self._step = ""

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def progress(self, step: str, done: int, total: int) -> None:
        """Move the bar, or begin another one."""
        if self._task is None or _kind(self._step) != _kind(step):
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._task = self._progress.add_task(step, total=total)
        self._step = step
        self._progress.start()
        self._progress.update(self._task, description=step, completed=done, total=total)


class ProgressLines:
    """A listener for a log file: a line for every tenth of the way instead of a bar."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last: tuple[str, int] = ("", 0)

    def note(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def progress(self, step: str, done: int, total: int) -> None:
        """Print a line when another tenth is done."""
        now = (_kind(step), done * 10 // max(total, 1))
        if now != self._last:
            self._last = now
            self.note(f"{step}: {now[1] * 10}%")


def _kind(step: str) -> str:
    # "package 2 of 6" goes on from "package 1 of 6": one bar, so that its speed and remaining time mean something.
    return step.split(" ", 1)[0]


@contextlib.contextmanager
def progress_bar(unit: str) -> Iterator[ProgressBar | ProgressLines]:
    """Show progress on stderr while the block runs. `unit` is "bytes" or "tensors"."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield ProgressLines(console)
        return
    amount: list[ProgressColumn] = [MofNCompleteColumn()]
    if unit == "bytes":
        amount = [DownloadColumn(), TransferSpeedColumn()]
    columns = [TextColumn("{task.description}"), BarColumn(), *amount, TimeRemainingColumn()]
    progress = Progress(*columns, console=console, transient=True)
    try:
        yield ProgressBar(progress)
    finally:
        progress.stop()


def gigabytes(size: int) -> str:
    """Write a number of bytes as people do."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
