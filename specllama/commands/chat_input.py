"""The messages of a chat: typed, with a history of earlier ones, or lines of a script."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from specllama.models import catalog

QUOTES = '"""'
_HISTORY_LINES = 1000


class ChatInput:
    """A context manager over stdin, to be iterated once. A history is kept in specllama's cache folder."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdin.isatty()
        self._history = catalog.cache_dir() / "chat-history"
        self._readline: Any = None

    def __enter__(self) -> ChatInput:
        """Read the history, where Python has readline."""
        if self.is_terminal:
            with contextlib.suppress(ImportError):  # Windows
                import readline

                self._readline = readline
                try:
                    readline.read_history_file(self._history)
                except FileNotFoundError:  # none yet
                    pass
                except OSError as problem:  # what cannot be read must not be replaced either
                    self._readline = None
                    _warn(f"the history {self._history} cannot be read, and nothing is added to it: {problem}")
        return self

    def __exit__(self, *error: object) -> None:
        """Write the history."""
        if self._readline is not None:
            try:
                self._history.parent.mkdir(parents=True, exist_ok=True)
                self._readline.set_history_length(_HISTORY_LINES)
                self._readline.write_history_file(self._history)
            except OSError as problem:
                _warn(f"the history of the chat was not saved in {self._history}: {problem}")

    def __iter__(self) -> Iterator[str]:
        """Yield the messages that are not blank, until the end of stdin."""
        while True:
            try:
                message = read_message(_typed_line if self.is_terminal else _line_of_script)
            except KeyboardInterrupt:
                if not self.is_terminal:
                    raise
                print("\n(Ctrl-D or /exit leaves)", file=sys.stderr)
                continue
            if message is None:
                return
            if message.strip():
                yield message


def _warn(message: str) -> None:
    print(f"specllama: warning: {message}", file=sys.stderr)


def _typed_line(prompt: str) -> str | None:
    try:
        if sys.stdout.isatty():
            return input(prompt)
        print(prompt, end="", file=sys.stderr, flush=True)
        return input()
    except EOFError:
        print(file=sys.stderr)
        return None


def _line_of_script(prompt: str) -> str | None:
    line = sys.stdin.readline()
    return line.removesuffix("\n") if line else None


def read_message(read: Callable[[str], str | None]) -> str | None:
    """Read a message: a line, or what stands between three quotes, on as many lines as it takes.

    Args:
        read: gives the next line, None at the end. Its argument is what asks for one on a terminal.

    Returns:
        The message, None at the end.
    """
    line = read("> ")
    if line is None or not line.startswith(QUOTES):
        return line
    lines = [line.removeprefix(QUOTES)]
    while not lines[-1].rstrip().endswith(QUOTES):
        more = read(". ")
        if more is None:
            return "\n".join(lines).strip("\n")
        lines.append(more)
    lines[-1] = lines[-1].rstrip().removesuffix(QUOTES)
    return "\n".join(lines).strip("\n")
