"""The fields that a chat template reads besides the messages, such as ``enable_thinking`` and ``reasoning_effort``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specllama.drop_in.base_class import BaseLlama, file_of
from specllama.warn import warn

from .depth import require_few_levels
from .messages import names_read

_EFFORT = "reasoning_effort"
_THINKING = "enable_thinking"
_NAMES = {_THINKING: ("thinking", "reasoning"), _EFFORT: ("reasoning_strength",)}
"""Other names that some templates have for a field."""
_OURS = {
    *("messages", "tools", "tool_choice", "functions", "function_call", "add_generation_prompt"),
    *("bos_token", "eos_token", "raise_exception", "strftime_now"),
}


def given_fields(llama: BaseLlama, chat_template_kwargs: Any, reasoning_effort: Any) -> dict[str, Any]:
    """The template's fields, from a chat's arguments ``chat_template_kwargs`` and ``reasoning_effort``.

    If the template has another name for a field, the field gets that name.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: a field has a name that every template already gets from the chat.
    """
    fields = {} if chat_template_kwargs is None else chat_template_kwargs
    if not isinstance(fields, Mapping) or not all(isinstance(name, str) for name in fields):
        raise TypeError(
            f"chat_template_kwargs={chat_template_kwargs!r:.100} must be a dict of what the chat template reads, such "
            "as {'enable_thinking': False}"
        )
    require_few_levels(fields, "chat_template_kwargs")
    for name in fields.keys() & _OURS:
        raise ValueError(f"chat_template_kwargs has {name!r}, which the chat template already gets: leave it out")
    if reasoning_effort is not None and not isinstance(reasoning_effort, str):
        raise TypeError(f"reasoning_effort={reasoning_effort!r:.100} must be a text, such as 'low', or None")
    if reasoning_effort == "none":
        fields = {_THINKING: False, **fields}
    elif reasoning_effort is not None:
        fields = {_EFFORT: reasoning_effort, **fields}
    read = names_read(llama) if fields else frozenset()
    here = {name: next((each for each in (name, *_NAMES.get(name, ())) if each in read), name) for name in fields}
    return {here[name]: value for name, value in fields.items()}


def may_think(fields: Mapping[str, Any]) -> bool:
    """Whether the model may think: False if a field of the template says that it is to answer without a thought."""
    return all(fields.get(name) is not False for name in (_THINKING, *_NAMES[_THINKING]))


def unread_fields(llama: BaseLlama, fields: Mapping[str, Any]) -> list[str]:
    """The names of the fields that the Llama's chat template does not read, sorted."""
    read = names_read(llama) if fields else frozenset()
    return sorted(fields.keys() - read)


def warn_of_fields(llama: BaseLlama, fields: Mapping[str, Any]) -> None:
    """Warn of fields that have no effect."""
    for name in unread_fields(llama, fields):
        warn(f"{name} has no effect: the chat template of {file_of(llama)} does not read it; leave it out")


def read_fields(llama: BaseLlama, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that the Llama's chat template reads."""
    unread = unread_fields(llama, fields)
    return {name: value for name, value in fields.items() if name not in unread}
