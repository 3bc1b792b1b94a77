"""Shows the progress of many texts in a terminal."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .outcomes import Outcome


def progress_bar(outcomes: Iterator[Outcome], total: int | None, num_done: int = 0) -> Generator[Outcome, None, None]:
    """Pass on outcomes, and show a progress bar on stderr.

    Args:
        outcomes: the outcomes, as they end.
        total: the number of outcomes in all; None if it is not known.
        num_done: the number of outcomes that were done before.
    """
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[speed]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total, completed=num_done, speed="")
        num_tokens = 0
        for outcome in outcomes:
            num_tokens += outcome.stats.num_tokens
            elapsed = bar.tasks[task].elapsed or 0.0
            bar.update(task, advance=1, speed=f"{num_tokens / elapsed:.1f} tokens/s" if elapsed else "")
            yield outcome
