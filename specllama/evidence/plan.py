"""What every plan checks before anything is decoded: a draft, numbers that make sense, and prompts that fit."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING

from specllama.engine import NumDraftTokens, checked_num_draft_tokens

if TYPE_CHECKING:
    from specllama import Llama
    from specllama.prompts import Prompt, RenderedPrompt

    Question = tuple[Prompt, RenderedPrompt]
    """What is asked, and its tokens."""


def require_draft(llm: Llama) -> None:
    """Refuse a Llama without a draft.

    Raises:
        ValueError: it has none.
    """
    if llm.draft_model is None:
        raise ValueError("the Llama has no draft_model: there is nothing to compare with plain decoding")


def checked_gamma(llm: Llama, num_draft_tokens: NumDraftTokens | None) -> NumDraftTokens:
    """How much the speculative side drafts: what was given, or for None what the Llama is set to.

    Raises:
        ValueError: no draft, or nothing is drafted.
    """
    require_draft(llm)
    gamma = checked_num_draft_tokens(llm.num_draft_tokens if num_draft_tokens is None else num_draft_tokens)
    if gamma == 0:
        raise ValueError("num_draft_tokens=0 is plain decoding, which would be compared with itself: give at least 1")
    return gamma


def require_at_least(least: int, **numbers: int) -> None:
    """Refuse numbers that are too small.

    Raises:
        ValueError: one is.
        TypeError: one is no integer.
    """
    for name, number in numbers.items():
        if operator.index(number) < least:
            raise ValueError(f"{name}={number} is too small: give at least {least}")


def that_fit(llm: Llama, prompts: Sequence[Prompt], room: int) -> tuple[list[Question], str]:
    """The prompts as the model reads them. That is found out now: a prompt's turn may be hours away.

    Args:
        llm: the target.
        prompts: what is asked.
        room: tokens behind each of them, for the answer.

    Returns:
        Those that fit the context, and what to say of the others: nothing if there are none.

    Raises:
        ValueError: there are no prompts.
    """
    if not prompts:
        raise ValueError("there are no prompts: give at least one")
    questions, too_long = [], []
    for prompt in prompts:
        rendered = prompt.rendered(llm)
        needed = len(rendered.tokens) + room
        if needed <= llm.n_ctx():
            questions.append((prompt, rendered))
        else:
            too_long.append(f"{prompt.id} ({needed})")
    if not too_long:
        return questions, ""
    return questions, (
        f"with answers of {room} tokens some prompts do not fit into n_ctx={llm.n_ctx()}: {', '.join(too_long)}; "
        "give a larger n_ctx (-c on the command line), or shorter prompts"
    )
