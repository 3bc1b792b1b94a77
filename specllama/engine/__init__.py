"""The engine: tokens in, tokens out. It generates one text or several, with a draft, over llama.cpp's C functions.

The engine knows no class of llama_cpp's, and does not depend on who calls it: everything that belongs to a text is in
its `Request`, and a `Listener` is notified of it. Characters of texts, chats and OpenAI's forms are not known here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .direct import Direct, Row
    from .engine import Engine
    from .expected_gain import best_length, break_even
    from .generation import Generation
    from .listener import Listener
    from .model import Model
    from .options import NumDraftTokens, checked_index, checked_num_draft_tokens, checked_seed, checked_verify
    from .request import Request
    from .rules import DEPENDENT_ON_DRAFT, RULES, VERIFY, is_independent_of_draft
    from .schema_constraint import Schema
    from .vocabulary import Gbnf

__all__ = ["Direct", "Engine", "Gbnf", "Generation", "Listener", "Model", "Request", "Row", "Schema"]
__all__ += ["best_length", "break_even"]
__all__ += ["DEPENDENT_ON_DRAFT", "RULES", "VERIFY", "is_independent_of_draft"]
__all__ += ["NumDraftTokens", "checked_index", "checked_num_draft_tokens", "checked_seed", "checked_verify"]

_EXPORTS = {
    "direct": ("Direct", "Row"),
    "engine": ("Engine",),
    "expected_gain": ("best_length", "break_even"),
    "generation": ("Generation",),
    "listener": ("Listener",),
    "model": ("Model",),
    "options": ("NumDraftTokens", "checked_index", "checked_num_draft_tokens", "checked_seed", "checked_verify"),
    "request": ("Request",),
    "rules": ("DEPENDENT_ON_DRAFT", "RULES", "VERIFY", "is_independent_of_draft"),
    "schema_constraint": ("Schema",),
    "vocabulary": ("Gbnf",),
}
_WHERE = {name: module for module, names in _EXPORTS.items() for name in names}


def __getattr__(name: str) -> Any:
    # Names are imported when they are first used: the command line needs limits and rules without loading libllama.
    from importlib import import_module

    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_WHERE[name]}", __name__), name)
