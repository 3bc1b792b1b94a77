"""How a model's text is printed, and notes on stderr, so that stdout holds nothing but results."""

from __future__ import annotations

from rich.columns import Columns
from rich.console import Console
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


def gigabytes(size: int) -> str:
    """Write a number of bytes as people do."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
