"""Uses stdout and stderr, each of which may be None (pythonw, services), closed, or have little but ``write``."""

from __future__ import annotations

import contextlib
import sys
from typing import Any


def is_terminal(stream: Any) -> bool:
    """Whether a stream is a terminal."""
    with contextlib.suppress(AttributeError, OSError, ValueError):  # ValueError: the stream is closed
        return bool(stream.isatty())
    return False


def has_stderr() -> bool:
    """Whether stderr can be written to."""
    return sys.stderr is not None and not getattr(sys.stderr, "closed", False)


def show(text: str) -> None:
    """Write a text to stderr. If that fails, the text is dropped."""
    with contextlib.suppress(AttributeError, OSError, ValueError):  # stderr is None; its disk is full; it is closed
        sys.stderr.write(text)
        sys.stderr.flush()
