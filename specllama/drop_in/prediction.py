"""What a caller expects a text to be, as OpenAI's ``prediction``: it is looked up, and drafted from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specllama.engine.position import only_tokens
from specllama.stats import DrafterStats, Stats
from specllama.warn import warn

from .parts import text_of
from .prompt_tokens import continuation_tokens
from .view import Call, EngineLlama

_FORM = '{"type": "content", "content": TEXT}'
_LINK = 8  # tokens of the prompt before it, by which its beginning is found


def checked_prediction(given: Any) -> str | None:
    """The text that is expected; None if none is.

    Args:
        given: a text, or OpenAI's object, whose content may be parts.

    Raises:
        TypeError: neither.
    """
    if given is None or isinstance(given, str):
        return given or None
    content = given.get("content") if isinstance(given, Mapping) and given.get("type", "content") == "content" else None
    if isinstance(content, (list, tuple)):
        texts = [text_of(part) for part in content]
        content = None if None in texts else "\n".join(text for text in texts if text is not None)
    if not isinstance(content, str):
        raise TypeError(f"prediction={given!r:.100} must be a text, or {_FORM}")
    return content or None


def is_looked_up(llama: EngineLlama, call: Call) -> bool:
    """Whether the draft looks at such a text."""
    draft = llama.engine.draft
    return draft is not None and draft.unusable is None and draft.looks_up(call.options)


def corpus_of(llama: EngineLlama, call: Call, prompt: Sequence[int]) -> list[int]:
    """The tokens that a call has looked up besides its text.

    Args:
        llama: whose tokens they are.
        call: what it asks for.
        prompt: its tokens.
    """
    if call.prediction is None:
        return []
    if not is_looked_up(llama, call):
        if not call.knows_what_is_ignored:
            warn(
                "prediction has no effect: it is looked up by draft_model='lookup', and by a model or a head under "
                "num_draft_tokens='auto'"
            )
        return []
    return [*only_tokens(list(prompt))[-_LINK:], *continuation_tokens(llama, call.prediction, special=False)]


def prediction_usage(stats: Stats) -> dict[str, Any]:
    """What became of it, in a ``usage``: tokens that were looked up, in it or in the text, by what the target said."""
    found = stats.per_drafter.get("lookup", DrafterStats())
    accepted = found.num_accepted_tokens
    counts = {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": found.num_draft_tokens - accepted}
    return {"completion_tokens_details": counts}
