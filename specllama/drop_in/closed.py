"""Whether a Llama is open, and what is left of it when it is not."""

from __future__ import annotations

from typing import Any, NoReturn

from specllama.engine.model import raise_closed

from .base_class import BaseLlama

# Attributes that hold, or lead to, freed memory.
_NATIVE = ("_model", "_ctx", "_batch", "tokenizer_", "_sampler", "_candidates")


class _Closed:
    """Stands where native objects were: using it raises instead of reading freed memory."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise_closed()


def is_open(llama: BaseLlama) -> bool:
    """Whether the Llama's context has not been freed."""
    context: Any = llama._ctx
    return not isinstance(context, _Closed) and context.ctx is not None


def close_for_good(llama: BaseLlama) -> None:
    """Make every further use of a Llama raise ClosedError."""
    closed: Any = _Closed()
    for name in _NATIVE:
        if name in llama.__dict__:
            setattr(llama, name, closed)
