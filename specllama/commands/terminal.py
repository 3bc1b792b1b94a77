"""Prints a model's text on a terminal."""

from __future__ import annotations

from rich.columns import Columns
from rich.console import Console
from rich.text import Text

# Maps each character that controls a terminal to the character that is shown instead. Tab and newline are allowed.
_CONTROLS = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"}
_CONTROLS |= dict.fromkeys(range(0x7F, 0xA0), "\ufffd")


STYLES = {"draft": "green", "lookup": "yellow", "correction": "bold red", "bonus": "bold cyan", "plain": ""}
"""The style of tokens for each origin."""
_MEANINGS = {
    "draft": "drafted, accepted",
    "lookup": "looked up in the text, accepted",
    "correction": "the target's, after a rejection",
    "bonus": "the target's, after a draft accepted whole",
    "plain": "nothing was drafted",
}


def legend() -> Columns:
    """The meaning of the colours, in one line of the terminal."""
    return Columns([Text(f"{origin}: {_MEANINGS[origin]}", STYLES[origin]) for origin in STYLES], padding=(0, 3))


def harmless(text: str) -> str:
    """Make control characters in a model's text visible, so that they cannot control the terminal."""
    return text.translate(_CONTROLS)


def print_piece(out: Console, piece: str, style: str = "") -> None:
    """Print a piece of a model's text. On a terminal, its control characters are made visible."""
    piece = harmless(piece) if out.is_terminal else piece
    if out.is_terminal and style:
        out.print(Text(piece, style), end="", soft_wrap=True)
    else:  # rich would replace tabs
        print(piece, end="", file=out.file, flush=True)


def gigabytes(size: int) -> str:
    """A number of bytes as text, such as "1.27 GB" or "350 MB"."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
