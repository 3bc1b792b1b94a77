"""Shows a prompt being decoded plainly and speculatively, and reports the speeds of both ways."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from specllama.commands.terminal import STYLES, harmless, legend, print_piece
from specllama.evidence import compare

if TYPE_CHECKING:
    from specllama import Llama
    from specllama.prompts import Prompt
    from specllama.token import Token

_NARROW = 80  # columns: in a narrower terminal two texts do not fit side by side
_REDRAW_SECONDS = 0.1  # the least time between two drawings, so that drawing does not slow decoding down
_FRAME_LINES = 5  # lines for borders and legend, and a spare one


def show(out: Console, llm: Llama, prompt: str | Prompt, **options: Any) -> compare.Comparison:
    """Decode in both ways and show the texts: side by side in a wide terminal, otherwise one after the other."""
    wide = out.is_terminal and not out.is_dumb_terminal and out.width >= _NARROW
    if not wide:
        with _in_turn(out) as listener:
            return compare.run(llm, prompt, on_token=listener, **options)
    with Panes(out) as panes:

        def on_token(way: str, token: Token) -> None:
            panes.add(way, token)
            if panes.due:
                panes.draw({way: _rate(compare.Side([], llm.stats))})

        comparison = compare.run(llm, prompt, on_token=on_token, **options)
        speedup = f"{_rate(comparison.speculative)}, {comparison.speedup:.2f}x"
        panes.draw({"plain": _rate(comparison.plain), "speculative": speedup})
    return comparison


@contextlib.contextmanager
def _in_turn(out: Console) -> Iterator[Any]:
    """A context manager that gives a function for printing the tokens: one text after the other."""
    current = ""

    def on_token(way: str, token: Token) -> None:
        nonlocal current
        if way != current:
            if current:
                out.print()
            out.rule(f"{way} decoding")
            current = way
        print_piece(out, token.text)

    try:
        yield on_token
    finally:
        out.print()


class Panes:
    """Shows both texts in columns while they grow. At the end, or after an error, the whole texts are printed."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._texts = {way: Text() for way in compare.WAYS}
        self._notes = dict.fromkeys(compare.WAYS, "")
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._drawn = -math.inf

    def __enter__(self) -> Panes:
        """Begin to draw."""
        self._live.start()
        self.draw({})
        return self

    def __exit__(self, *error: object) -> None:
        """Replace the drawing by the whole texts."""
        self._live.stop()
        self._console.print(self._columns(self._texts))

    def add(self, way: str, token: Token) -> None:
        """Append a token to the text of `way`."""
        self._texts[way].append(harmless(token.text), STYLES[token.origin])

    @property
    def due(self) -> bool:
        """Whether it is time to draw again."""
        return time.monotonic() - self._drawn >= _REDRAW_SECONDS

    def draw(self, notes: dict[str, str]) -> None:
        """Draw as much of the end of each text as there is room for, with notes below."""
        self._notes |= notes
        height = max(3, self._console.height - _FRAME_LINES)
        width = max(1, self._console.width // len(self._texts) - 4)  # a column without its border and padding
        ends = {
            way: Text("\n").join(list(text.copy().wrap(self._console, width))[-height:])
            for way, text in self._texts.items()
        }
        self._live.update(self._columns(ends, height + 2), refresh=True)
        self._drawn = time.monotonic()

    def _columns(self, texts: dict[str, Text], height: int | None = None) -> RenderableType:
        grid = Table.grid(expand=True)
        for _ in texts:
            grid.add_column(ratio=1)
        grid.add_row(*(Panel(text, title=way, subtitle=self._notes[way], height=height) for way, text in texts.items()))
        return Group(grid, legend())


def _rate(side: compare.Side) -> str:
    return f"{side.stats.num_tokens} tokens, {side.tokens_per_second:.2f} t/s"


def report(out: Console, comparison: compare.Comparison, models: str = "", remark: str | None = None) -> None:
    """Print the measurements of both ways and their meaning, also if plain decoding was faster.

    Args:
        out: the console to print on.
        comparison: the results of both ways.
        models: the names of the models; empty to leave them out.
        remark: a further remark for the reader; None for none.
    """
    out.rule()
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("decoding", no_wrap=True)
    for way in compare.WAYS:
        table.add_column(way, justify="right", no_wrap=True)
    measures = zip(_measures(comparison.plain, 1.0), _measures(comparison.speculative, comparison.speedup), strict=True)
    for (name, plain), (_, speculative) in measures:
        table.add_row(name, plain, speculative)
    out.print(table)
    heading = f"{models}; one run each" if models else "One run each"
    remarks = [] if remark is None else [f"Note: {remark}."]
    for line in [f"{heading}, the prompt's time left out.", *_conclusions(comparison), *remarks]:
        out.print(line, markup=False, soft_wrap=True)


def report_gain(
    out: Console,
    prompt: str | Prompt,
    theirs: dict[str, Any],
    ours: dict[str, Any],
    **options: Any,
) -> None:
    """Measure whole calls of llama_cpp.Llama and of specllama.Llama, and print what specllama gains.

    Args:
        out: the console to print on.
        prompt: a user's message, or a `Prompt`.
        theirs: the constructor arguments of llama_cpp.Llama.
        ours: the constructor arguments of specllama.Llama.
        options: the arguments of `bench.Plan.checked`.
    """
    from specllama.evidence.bench import Plan
    from specllama.evidence.bench.against import Against
    from specllama.prompts import Prompt

    against = Against([Prompt.of(prompt, 1)], Plan.checked(**options), theirs=theirs, ours=ours)
    result = against.run(lambda *call: None, lambda note: None)
    gains = {gain.mode: gain for gain in result.gains}
    if not gains:
        out.print("No token was generated: there is no speed to compare.")
        return
    kernels, both = gains["plain"], gains["auto"]
    out.print(
        f"Whole calls, prompt included: llama_cpp.Llama {both.their_tokens_per_second:.2f} t/s, specllama.Llama "
        f"{both.tokens_per_second:.2f} t/s, {both.mean:.2f}x: {kernels.mean:.2f}x without the draft, and "
        f"{both.over_plain:.2f}x of that with it.",
        markup=False,
        soft_wrap=True,
    )
    for note in result.notes:
        out.print(f"Note: {note}.", markup=False, soft_wrap=True)


def _measures(side: compare.Side, speed: float) -> list[tuple[str, str]]:
    stats = side.stats
    return [
        ("tokens", str(stats.num_tokens)),
        ("seconds", f"{side.seconds:.2f}"),
        ("t/s", f"{side.tokens_per_second:.2f}"),
        ("speed", f"{speed:.2f}x"),
        ("accepted", f"{stats.acceptance_rate:.0%}" if stats.num_draft_tokens else "-"),
    ]


def _conclusions(comparison: compare.Comparison) -> list[str]:
    reason, split = comparison.speculative.stats.fallback_reason, comparison.first_difference
    lines = [f"Nothing was drafted: {reason}."] if reason else []
    if split is None:
        lines.append("Both texts are the same, token for token.")
    elif comparison.same_text_expected:
        lines.append(
            f"The texts part at token {split}. Batches of other sizes round differently, which decides between two "
            "tokens that nearly tie. `specllama verify` measures how near, on texts of its own."
        )
    else:
        lines.append("The texts differ, as two samples of one distribution do; --verify coupled makes them the same.")
    if comparison.speedup < 1 and comparison.speculative.stats.num_draft_tokens:
        lines.append("Speculation is slower here. It pays where reading the weights takes the time, not computing.")
    return lines
