"""Checks that every plan does before anything is decoded: a draft, numbers in range, and prompts that fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specllama.engine import NumDraftTokens, checked_index, checked_num_draft_tokens

if TYPE_CHECKING:
    from specllama.llama import Llama
    from specllama.prompts import Prompt, RenderedPrompt

    Question = tuple[Prompt, RenderedPrompt]
    """A prompt, and its tokens."""


def require_draft(llm: Llama) -> None:
    """Check that a Llama has a draft.

    Raises:
        ValueError: the Llama has no draft.
    """
    if llm.draft_model is None:
        raise ValueError("the Llama has no draft_model: there is nothing to compare with plain decoding")


def checked_gamma(llm: Llama, num_draft_tokens: NumDraftTokens | None) -> NumDraftTokens:
    """Check how much the speculative side drafts: the given value, or for None the Llama's own.

    Raises:
        ValueError: no draft, or nothing is drafted.
    """
    require_draft(llm)
    gamma = checked_num_draft_tokens(llm.num_draft_tokens if num_draft_tokens is None else num_draft_tokens)
    if gamma == 0:
        raise ValueError("num_draft_tokens=0 is plain decoding, which would be compared with itself: give at least 1")
    return gamma


def require_at_least(least: int, **numbers: int) -> None:
    """Check that numbers are at least ``least``.

    Raises:
        ValueError: a number is too small.
        TypeError: a number is not an integer.
    """
    for name, number in numbers.items():
        if checked_index(name, number, "an int") < least:
            raise ValueError(f"{name}={number} is too small: give at least {least}")


def that_fit(llm: Llama, prompts: Sequence[Prompt], room: int) -> tuple[list[Question], str]:
    """Tokenize prompts, and find those that fit. A prompt's turn may be hours away: errors should come now.

    Args:
        llm: the target.
        prompts: the prompts.
        room: how many tokens each answer needs after its prompt.

    Returns:
        The prompts that fit into the context, and a message about all others, which is empty if all fit.

    Raises:
        ValueError: there are no prompts, or none fits.
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
    problem = (
        f"with answers of {room} tokens some prompts do not fit into n_ctx={llm.n_ctx()}: {', '.join(too_long)}; "
        "give a larger n_ctx (-c on the command line), or shorter prompts"
    )
    if not questions:
        raise ValueError(f"there is no prompt to measure: {problem}")
    return questions, problem
