"""The engine: tokens in, tokens out. It generates one text or several, with a draft, over llama.cpp's C functions.

The engine uses no class of llama_cpp's, and does not depend on its callers: a caller describes a text in a `Request`,
and gives a `Listener` that is notified of the text. The engine knows nothing of characters, chats and OpenAI's forms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specllama.doors import opened

if TYPE_CHECKING:
    from specllama._core import SamplerParams, server_samplers

    from .costs import KeptCurves
    from .direct import Direct, Row
    from .drafts.automatic import Choice, chosen_of, remember
    from .drafts.draft import LOOKUP
    from .drafts.remembered import forget, measured_gain
    from .engine import Engine
    from .examples.file import Kept, num_rows_of, read_kept
    from .examples.file import Name as KeptName
    from .examples.store import KeptFile, ask_for_room, forget_kept, kept_files, last_use, learn_dir, remove_left
    from .expected_gain import Expected, best_length, break_even
    from .generation import Generation
    from .hidden import FINAL
    from .learned import Learned, forget_head, fresh_texts, learned_head, learned_path, learned_weights, num_kept
    from .learning import Learning
    from .limits import (
        BYTES_OF_TOKEN,
        LARGEST_INT,
        MOST_DRAFT_TOKENS,
        MOST_THREADS,
        require_room,
        require_room_for_ids,
        size_of,
    )
    from .listener import Listener, Stopped
    from .model import Model
    from .options import NumDraftTokens, Verify, checked_index, checked_num_draft_tokens, checked_seed, checked_verify
    from .prefixes.folder import Content as CacheContent
    from .prefixes.folder import contents as cache_contents
    from .prefixes.folder import empty as empty_cache
    from .prefixes.store import StoreOptions
    from .request import Request
    from .rules import DEPENDENT_ON_DRAFT, RULES, VERIFY, is_independent_of_draft
    from .samplers import CHAIN, DEFAULTS, SAMPLERS
    from .schema_constraint import Schema
    from .slot import Slot
    from .texts import checked_max_parallel
    from .unused_slot import TextBegins, UnusedSlot
    from .vocabulary import Gbnf, end_tokens

__all__ = ["Direct", "Engine", "Gbnf", "Generation", "Listener", "Model", "Request", "Row", "Schema", "Slot"]
__all__ += ["CHAIN", "DEFAULTS", "Stopped", "TextBegins", "UnusedSlot", "Verify", "checked_max_parallel", "end_tokens"]
__all__ += ["BYTES_OF_TOKEN", "require_room", "require_room_for_ids", "size_of"]
__all__ += ["Choice", "Expected", "KeptCurves", "best_length", "break_even", "chosen_of", "forget", "remember"]
__all__ += ["DEPENDENT_ON_DRAFT", "FINAL", "LOOKUP", "RULES", "VERIFY", "is_independent_of_draft"]
__all__ += ["SAMPLERS", "SamplerParams", "server_samplers"]
__all__ += ["LARGEST_INT", "MOST_DRAFT_TOKENS", "MOST_THREADS"]
__all__ += ["CacheContent", "StoreOptions", "cache_contents", "empty_cache"]
__all__ += ["Kept", "KeptFile", "KeptName", "Learning", "forget_kept", "kept_files", "last_use", "learn_dir"]
__all__ += ["ask_for_room", "remove_left"]
__all__ += ["Learned", "forget_head", "fresh_texts", "learned_head", "learned_path", "learned_weights"]
__all__ += ["measured_gain", "num_kept", "num_rows_of", "read_kept"]
__all__ += ["NumDraftTokens", "checked_index", "checked_num_draft_tokens", "checked_seed", "checked_verify"]

_EXPORTS = {
    "._core": ("SamplerParams", "server_samplers"),
    "costs": ("KeptCurves",),
    "direct": ("Direct", "Row"),
    "drafts.automatic": ("Choice", "chosen_of", "remember"),
    "drafts.draft": ("LOOKUP",),
    "drafts.remembered": ("forget", "measured_gain"),
    "engine": ("Engine",),
    "examples.file": ("Kept", "num_rows_of", "read_kept"),
    "examples.store": (
        *("KeptFile", "ask_for_room", "forget_kept", "kept_files"),
        *("last_use", "learn_dir", "remove_left"),
    ),
    "expected_gain": ("Expected", "best_length", "break_even"),
    "generation": ("Generation",),
    "hidden": ("FINAL",),
    "learned": (
        *("Learned", "forget_head", "fresh_texts", "num_kept"),
        *("learned_head", "learned_path", "learned_weights"),
    ),
    "learning": ("Learning",),
    "limits": (
        *("BYTES_OF_TOKEN", "LARGEST_INT", "MOST_DRAFT_TOKENS", "MOST_THREADS"),
        *("require_room", "require_room_for_ids", "size_of"),
    ),
    "listener": ("Listener", "Stopped"),
    "model": ("Model",),
    "options": (
        *("NumDraftTokens", "Verify"),
        *("checked_index", "checked_num_draft_tokens", "checked_seed", "checked_verify"),
    ),
    "prefixes.store": ("StoreOptions",),
    "request": ("Request",),
    "rules": ("DEPENDENT_ON_DRAFT", "RULES", "VERIFY", "is_independent_of_draft"),
    "samplers": ("CHAIN", "DEFAULTS", "SAMPLERS"),
    "schema_constraint": ("Schema",),
    "slot": ("Slot",),
    "texts": ("checked_max_parallel",),
    "unused_slot": ("TextBegins", "UnusedSlot"),
    "vocabulary": ("Gbnf", "end_tokens"),
}
_RENAMED = {
    "CacheContent": ("prefixes.folder", "Content"),
    "cache_contents": ("prefixes.folder", "contents"),
    "KeptName": ("examples.file", "Name"),
    "empty_cache": ("prefixes.folder", "empty"),
}
__getattr__ = opened(__name__, _EXPORTS, _RENAMED)
