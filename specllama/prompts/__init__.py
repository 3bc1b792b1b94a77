"""Prompts for measurements and comparisons: our own small set, HumanEval, Spec-Bench, plain text."""

from __future__ import annotations

from collections.abc import Iterable

from .prompt import Prompt, RenderedPrompt
from .reading import builtin_prompts, limited, object_of, read_prompts, read_text


def as_prompts(given: Iterable[Prompt | str]) -> list[Prompt]:
    """Turn prompts and messages into a list of prompts.

    Args:
        given: prompts, or user's messages. Messages are called ``prompt-1``, ``prompt-2``, ... by their place in the
            list.

    Raises:
        TypeError: ``given`` is one string, or an item is neither a prompt nor a string.
    """
    if isinstance(given, str):
        raise TypeError(f"{given!r} is one string: give a list of prompts")
    return [Prompt.of(prompt, number) for number, prompt in enumerate(given, 1)]


__all__ = [
    "Prompt",
    "RenderedPrompt",
    "as_prompts",
    "builtin_prompts",
    "limited",
    "object_of",
    "read_prompts",
    "read_text",
]
