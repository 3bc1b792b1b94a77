"""Uses stdout and stderr, which may be None (pythonw, services), closed, or an object with little but ``write``."""

from __future__ import annotations

import contextlib
import sys
from typing import Any


def is_terminal(stream: Any) -> bool:
    """Whether a stream is a terminal."""
    with contextlib.suppress(AttributeError, OSError, ValueError):  # ValueError: it is closed
        return bool(stream.isatty())
    return False


def has_stderr() -> bool:
    """Whether stderr can be written to."""
    return sys.stderr is not None and not getattr(sys.stderr, "closed", False)


def show(text: str) -> None:
    """Write to stderr, if it can be written to."""
    with contextlib.suppress(AttributeError, OSError, ValueError):  # None; full; closed
        sys.stderr.write(text)
        sys.stderr.flush()
