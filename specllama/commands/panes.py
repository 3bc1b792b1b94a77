"""Two texts that grow side by side in a terminal, their tokens coloured by where they came from."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from specllama.commands.terminal import harmless

if TYPE_CHECKING:
    from specllama.token import Token

STYLES = {"draft": "green", "lookup": "yellow", "correction": "bold red", "bonus": "bold cyan", "plain": ""}
MEANINGS = {
    "draft": "drafted, accepted",
    "lookup": "looked up in the text, accepted",
    "correction": "the target's, after a rejection",
    "bonus": "the target's, after a draft accepted whole",
    "plain": "nothing was drafted",
}
_REDRAW_SECONDS = 0.1
_FRAME_LINES = 5  # borders, legend, and a line to spare


class Panes:
    """A context manager that shows the named texts in columns while they grow, and whole at the end."""

    def __init__(self, console: Console, names: tuple[str, ...]) -> None:
        self._console = console
        self._texts = {name: Text() for name in names}
        self._notes = dict.fromkeys(names, "")
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._drawn = 0.0

    def __enter__(self) -> Panes:
        """Begin to draw."""
        self._live.__enter__()
        self._draw()
        return self

    def __exit__(self, *error: object) -> None:
        """Replace what was drawn by the whole texts, whatever ended the block."""
        self._live.__exit__(None, None, None)
        self._console.print(self._columns(self._texts))

    def add(self, name: str, token: Token) -> None:
        """Append a token to one of the texts."""
        self._texts[name].append(harmless(token.text), STYLES[token.origin])

    def note(self, name: str, note: str) -> None:
        """Say something under one of the texts."""
        self._notes[name] = note

    @property
    def due(self) -> bool:
        """Whether it is time to draw again. Between two drawings a token costs next to nothing."""
        return time.monotonic() - self._drawn >= _REDRAW_SECONDS

    def redraw(self) -> None:
        """Draw what is there."""
        self._draw()

    def _draw(self) -> None:
        height = max(3, self._console.height - _FRAME_LINES)
        ends = {name: self._end_of(text, height) for name, text in self._texts.items()}
        self._live.update(self._columns(ends, height=height + 2), refresh=True)
        self._drawn = time.monotonic()

    def _end_of(self, text: Text, height: int) -> Text:
        width = self._console.width // len(self._texts) - 4  # borders and padding
        lines = text.copy().wrap(self._console, max(width, 1))
        return Text("\n").join(list(lines)[-height:])

    def _columns(self, texts: dict[str, Text], height: int | None = None) -> RenderableType:
        grid = Table.grid(expand=True)
        panels = []
        for name, text in texts.items():
            grid.add_column(ratio=1)
            panels.append(Panel(text, title=name, subtitle=self._notes[name], height=height))
        grid.add_row(*panels)
        return Group(grid, legend())


def legend() -> Columns:
    """What the colours mean."""
    return Columns([Text(f"{origin}: {MEANINGS[origin]}", STYLES[origin]) for origin in STYLES], padding=(0, 3))
