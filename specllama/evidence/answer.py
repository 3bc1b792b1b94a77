"""An answer of a model, with its tokens and statistics. The evidence tools compare answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specllama import Llama, Stats
    from specllama.prompts import RenderedPrompt


@dataclasses.dataclass(frozen=True)
class Answer:
    """The result of one generation."""

    text: str
    tokens: list[int]
    """All generated tokens, with the token that ended the text."""
    finish_reason: str
    """``stop`` or ``length``."""
    stats: Stats


def answer(llm: Llama, prompt: RenderedPrompt, **options: Any) -> Answer:
    """Complete a prompt.

    Args:
        llm: a target with its draft.
        prompt: the prompt to complete.
        options: options of ``create_completion``: ``max_tokens``, ``temperature``, ``seed``, ``num_draft_tokens``, ...
    """
    choice = llm.create_completion(prompt.tokens, stop=prompt.stop, **options)["choices"][0]
    stats = llm.stats
    first = stats.num_prompt_tokens
    tokens = [int(token) for token in llm.input_ids[first : first + stats.num_tokens]]
    return Answer(choice["text"], tokens, choice["finish_reason"], stats)


def first_difference(first: Sequence[int], second: Sequence[int]) -> int | None:
    """The first index at which two sequences of tokens differ; None if they are equal."""
    for index, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return index
    return None if len(first) == len(second) else min(len(first), len(second))
