"""`specllama compare`: plain and speculative decoding of one prompt, side by side."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specllama.commands import arguments as common
from specllama.commands.generate import add_prompt, read_prompt

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from specllama import Llama
    from specllama.commands import Subparsers
    from specllama.completions.chat_template import RenderedPrompt
    from specllama.evidence.compare import Comparison, Side
    from specllama.token import Token

_NARROW = 80  # columns of a terminal below which two texts, with their numbers, do not fit beside each other
_ENOUGH = 1000  # columns: no table is wider
_MEASURES = ("tokens", "seconds", "t/s", "speed", "accepted")


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the command."""
    parser = subparsers.add_parser(
        "compare",
        help="watch plain and speculative decoding of one prompt, side by side",
        description="Decode a prompt plainly and speculatively, and show both, with their tokens coloured by where "
        "they came from. Both start from empty caches; speeds leave out the prompt.",
    )
    add_prompt(parser)
    common.add_max_tokens(parser, 128)
    parser.add_argument("--chat", action="store_true", help="the prompt is a user's message: use the chat template")
    parser.add_argument("--json", action="store_true", help="print one object with both texts and their statistics")
    common.add_pair_arguments(parser)
    common.add_sampling_arguments(parser, "default 1, so that both write the same text")
    parser.set_defaults(seed=1)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Decode both ways, and show them."""
    from rich.console import Console

    from specllama.completions.chat_template import render_chat, render_text

    prompt = read_prompt(arguments.prompt)
    out = Console(highlight=False)
    with contextlib.closing(common.load_pair(arguments)) as llm:
        rendered = (render_chat if arguments.chat else render_text)(llm, prompt)
        options = {"max_tokens": arguments.max_tokens, **common.sampling_options(arguments)}
        if arguments.json:
            from specllama.evidence import compare

            print(json.dumps(compare.run(llm, rendered, **options).to_dict()))
        else:
            report(out, show(out, llm, rendered, **options))
    return 0


def show(out: Console, llm: Llama, prompt: RenderedPrompt, **options: Any) -> Comparison:
    """Decode both ways while showing the texts: side by side in a terminal, else one after the other."""
    if out.is_terminal and not out.is_dumb_terminal and out.width >= _NARROW:
        return _in_panes(out, llm, prompt, **options)
    return _in_turn(out, llm, prompt, **options)


def _in_panes(out: Console, llm: Llama, prompt: RenderedPrompt, **options: Any) -> Comparison:
    from specllama.commands.panes import Panes
    from specllama.evidence import compare

    with Panes(out, compare.WAYS) as panes:

        def on_token(way: str, token: Token) -> None:
            panes.add(way, token)
            if panes.due:
                panes.note(way, _rate(compare.Side([], llm.stats)))
                panes.redraw()

        comparison = compare.run(llm, prompt, on_token=on_token, **options)
        panes.note("plain", _rate(comparison.plain))
        panes.note("speculative", f"{_rate(comparison.speculative)}, {comparison.speedup:.2f}x")
    return comparison


def _in_turn(out: Console, llm: Llama, prompt: RenderedPrompt, **options: Any) -> Comparison:
    from specllama.commands.terminal import print_piece
    from specllama.evidence import compare

    shown = ""

    def on_token(way: str, token: Token) -> None:
        nonlocal shown
        if way != shown:
            if shown:
                out.print()
            out.rule(f"{way} decoding")
            shown = way
        print_piece(out, token.text)

    try:
        return compare.run(llm, prompt, on_token=on_token, **options)
    finally:
        out.print()


def _rate(side: Side) -> str:
    return f"{side.stats.num_tokens} tokens, {side.tokens_per_second:.2f} t/s"


def report(out: Console, comparison: Comparison, models: str = "") -> None:
    """Show what both ways took, and say what it means, also when plain decoding won."""
    from rich.measure import Measurement

    out.rule()
    numbers = {
        "plain": _numbers(comparison.plain, 1.0),
        "speculative": _numbers(comparison.speculative, comparison.speedup),
    }
    rows = [("decoding", *_MEASURES), *((name, *of_side) for name, of_side in numbers.items())]
    table = _table(rows)
    if Measurement.get(out, out.options.update(width=_ENOUGH), table).maximum > out.width:
        table = _table(list(zip(*rows, strict=True)))  # on its side it is narrower
    out.print(table)
    heading = f"{models}; one run each" if models else "One run each"
    for line in [f"{heading}, the prompt's time left out.", *_conclusions(comparison)]:
        out.print(line, markup=False, soft_wrap=True)


def _numbers(side: Side, speed: float) -> tuple[str, ...]:
    """The _MEASURES of one way of decoding."""
    stats = side.stats
    accepted = f"{stats.acceptance_rate:.0%}" if stats.num_draft_tokens else "-"
    return (str(stats.num_tokens), f"{side.seconds:.2f}", f"{side.tokens_per_second:.2f}", f"{speed:.2f}x", accepted)


def _table(rows: Sequence[Sequence[str]]) -> Table:
    """The first row and the first column are titles."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, title in enumerate(rows[0]):
        table.add_column(title, justify="right" if i else "left", no_wrap=True)
    for row in rows[1:]:
        table.add_row(*row)
    return table


def _conclusions(comparison: Comparison) -> list[str]:
    speculative = comparison.speculative.stats
    split = comparison.first_difference
    lines = []
    if speculative.fallback_reason:
        lines.append(f"Nothing was drafted: {speculative.fallback_reason}.")
    if split is None:
        lines.append("Both texts are the same, token for token.")
    elif comparison.same_text_expected:
        lines.append(
            f"The texts part at token {split}. Batches of other sizes round differently, which decides between two "
            "tokens that nearly tie. `specllama verify` measures how near, on texts of its own."
        )
    else:
        lines.append("The texts differ, as two samples of one distribution do; --verify coupled makes them the same.")
    if comparison.speedup < 1:
        lines.append("Speculation is slower here. It pays where reading the weights takes the time, not computing.")
    return lines
