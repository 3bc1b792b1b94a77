"""Closed Llamas: how to tell that a Llama is closed, and the object that then replaces its native objects."""

from __future__ import annotations

from typing import Any, NoReturn

from specllama.engine.model import raise_closed

from .base_class import BaseLlama

# A Llama's attributes that hold native memory, or objects that do.
_NATIVE = ("_model", "_ctx", "_batch", "tokenizer_", "_sampler", "_candidates")


class _Closed:
    """Replaces native objects that were freed. Any use of it raises ClosedError."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise_closed()


def is_open(llama: BaseLlama) -> bool:
    """Whether the Llama's context is still there."""
    context: Any = llama._ctx
    return not isinstance(context, _Closed) and context.ctx is not None


def close_for_good(llama: BaseLlama) -> None:
    """Make every further use of a Llama's native objects raise ClosedError."""
    closed: Any = _Closed()
    for name in _NATIVE:
        if name in llama.__dict__:
            setattr(llama, name, closed)
