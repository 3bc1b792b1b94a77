"""Completions of no tokens, through methods of the base class, to which a ``max_tokens`` of 0 means no limit."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

_asked: contextvars.ContextVar[bool] = contextvars.ContextVar("specllama_prompt_only", default=False)


def is_prompt_only() -> bool:
    """Whether the call under way is to generate nothing."""
    return _asked.get()


@contextlib.contextmanager
def prompt_only(wanted: bool) -> Iterator[None]:
    """Completions that begin in this block generate nothing, if that is wanted. With ``echo`` they score the prompt."""
    token = _asked.set(wanted)
    try:
        yield
    finally:
        _asked.reset(token)
