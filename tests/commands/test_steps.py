"""Progress of measurements."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from specllama.commands.steps import Steps, duration


def shown(*, terminal: bool) -> str:
    screen = io.StringIO()
    progress = Steps(Console(file=screen, force_terminal=terminal, width=100))
    progress.note("[warming] up")
    progress.done("code/[1]", 1, 4, None)
    progress.done("code/[1]", 2, 4, "plain 3 t/s")
    progress.stop()
    return screen.getvalue()


def test_a_bar_on_a_terminal() -> None:
    for wanted in ("[warming] up", "code/[1]", "2/4", "about 0 s left", "\x1b[?25h"):
        assert wanted in shown(terminal=True)
    assert "plain 3 t/s" not in shown(terminal=True)


def test_lines_elsewhere() -> None:
    assert shown(terminal=False).splitlines() == ["[warming] up", "2/4 plain 3 t/s; about 0 s left"]


def test_what_an_earlier_process_has_done_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time left is that of a work that is resumed, from what was done since."""
    now = 1000.0
    monkeypatch.setattr("specllama.commands.steps.time.monotonic", lambda: now)
    screen = io.StringIO()
    progress = Steps(Console(file=screen, force_terminal=False, width=100))
    progress.note("training")
    now += 5.0  # of loading
    progress.done("training", 500, 1000, "first")
    now += 10.0
    progress.done("training", 600, 1000, "second")
    assert screen.getvalue().splitlines()[1:] == ["500/1000 first", "600/1000 second; about 40 s left"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "about 0 s"), (89.4, "about 89 s"), (90, "about 2 min"), (5390, "about 90 min"), (9000, "about 2.5 h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
