"""OpenAI's ``prediction``: the text that a caller expects. Drafts are looked up in it."""

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
_LINK = 8  # last tokens of the prompt that are put before the prediction, so that lookup finds its first token


def checked_prediction(given: Any) -> str | None:
    """The text of a ``prediction``; None if there is none.

    Args:
        given: a text, or OpenAI's object, whose content is a text or a list of parts.

    Raises:
        TypeError: `given` is neither.
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
    """Whether the Llama's draft looks up a prediction with the options of this call."""
    draft = llama.engine.draft
    return draft is not None and draft.unusable is None and draft.looks_up(call.options)


def corpus_of(llama: EngineLlama, call: Call, prompt: Sequence[int]) -> list[int]:
    """The tokens to look up besides the text of a call. Warns if its prediction has no effect.

    Args:
        llama: the Llama that was called.
        call: the call, with its prediction.
        prompt: the prompt's tokens.

    Returns:
        The end of the prompt followed by the prediction; empty without a prediction, or if it is not looked up.
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


def prediction_usage(stats: Stats, accepted: int) -> dict[str, Any]:
    """OpenAI's fields of ``usage`` for a prediction: how many looked-up tokens are in the completion, and how many not.

    Tokens that were looked up in the text itself count, too.

    Args:
        stats: the statistics of the completion.
        accepted: how many tokens of the completion were looked up. The target has accepted more if the completion ends
            within a draft.
    """
    found = stats.per_drafter.get("lookup", DrafterStats())
    counts = {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": found.num_draft_tokens - accepted}
    return {"completion_tokens_details": counts}
