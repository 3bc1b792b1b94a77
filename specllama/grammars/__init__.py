"""Grammars and JSON schemas: they are checked and converted here, before llama.cpp sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .schemas import why_not_enforced, with_grammar_of_format

__all__ = ["why_not_enforced", "with_grammar_of_format"]


def __getattr__(name: str) -> Any:
    # Imported when it is first used: the rest of this folder needs no llama_cpp.
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(".schemas", __name__), name)
