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
    from .limits import require_room, size_of
    from .listener import Listener, Stopped
    from .model import Model
    from .options import NumDraftTokens, checked_index, checked_num_draft_tokens, checked_seed, checked_verify
    from .request import Request
    from .rules import DEPENDENT_ON_DRAFT, RULES, VERIFY, is_independent_of_draft
    from .schema_constraint import Schema
    from .slot import Slot
    from .texts import checked_max_parallel
    from .vocabulary import Gbnf

__all__ = ["Direct", "Engine", "Gbnf", "Generation", "Listener", "Model", "Request", "Row", "Schema", "Slot"]
__all__ += ["Stopped", "best_length", "break_even", "checked_max_parallel", "require_room", "size_of"]
__all__ += ["DEPENDENT_ON_DRAFT", "RULES", "VERIFY", "is_independent_of_draft"]
__all__ += ["NumDraftTokens", "checked_index", "checked_num_draft_tokens", "checked_seed", "checked_verify"]

_EXPORTS = {
    "direct": ("Direct", "Row"),
    "engine": ("Engine",),
    "expected_gain": ("best_length", "break_even"),
    "generation": ("Generation",),
    "limits": ("require_room", "size_of"),
    "listener": ("Listener", "Stopped"),
    "model": ("Model",),
    "options": ("NumDraftTokens", "checked_index", "checked_num_draft_tokens", "checked_seed", "checked_verify"),
    "request": ("Request",),
    "rules": ("DEPENDENT_ON_DRAFT", "RULES", "VERIFY", "is_independent_of_draft"),
    "schema_constraint": ("Schema",),
    "slot": ("Slot",),
    "texts": ("checked_max_parallel",),
    "vocabulary": ("Gbnf",),
}
_WHERE = {name: module for module, names in _EXPORTS.items() for name in names}


def __getattr__(name: str) -> Any:
    # Names are imported when they are first used: the command line needs limits and rules without loading libllama.
    from importlib import import_module

    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_WHERE[name]}", __name__), name)
