"""Brings a conversation that a chat template refuses into a form that the template accepts.

Some templates accept only one system message, at the beginning; some want the turns of user and assistant to alternate,
or know no tools. Agents send other conversations. `render` makes as few changes as the template needs, and none if the
template accepts the conversation.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Message = dict[str, Any]

_logger = logging.getLogger("specllama.chats")
_said: set[tuple[int, tuple[str, ...]]] = set()
_ONE_SYSTEM = "one system message at the beginning"
_ID_SIZE = 9  # Mistral's templates accept only ids of nine letters and digits


def render(formatter: Callable[..., Any], messages: Sequence[Any], **fields: Any) -> Any:
    """The response of one of llama_cpp's formatters to messages that its template may refuse.

    The changes to the messages are logged once, at level WARNING, to the logger ``specllama.chats``.

    Args:
        formatter: the formatter.
        messages: the messages, in the form that the template reads (`messages.as_read`).
        fields: the template's other variables.

    Raises:
        Exception: the exception that the template raises for the unchanged messages, if no change helps.
    """
    try:
        response = formatter(messages=messages, **fields)
        if not _leaves_out(response, messages):
            return response
    except Exception:
        described = _described(fields)
        if described != fields:
            return render(formatter, messages, **described)
        changed = _render_changed(formatter, messages, fields)
        if changed is None:
            raise
        return changed
    return _render_changed(formatter, messages, fields) or response


def _described(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields, with an empty description for each tool that has none: some templates, as gpt-oss's, need one."""
    tools = []
    for tool in fields.get("tools") or ():
        if isinstance(tool, Mapping) and isinstance(tool.get("function"), Mapping):
            tool = {**tool, "function": {"description": "", **tool["function"]}}
        tools.append(tool)
    return {**fields, "tools": tools} if tools else {**fields}


def _render_changed(formatter: Callable[..., Any], messages: Sequence[Any], fields: Mapping[str, Any]) -> Any:
    """The response to the messages with the fewest changes; None if no change helps."""
    for names, changed in _changed(messages):
        with contextlib.suppress(Exception):
            response = formatter(messages=changed, **fields)
            if not _leaves_out(response, messages):
                _say_once(formatter, names)
                return response
    return None


def _leaves_out(response: Any, messages: Sequence[Any]) -> bool:
    """Whether a prompt lacks a system message after the first one. Some templates leave these out."""
    further = [message.get("content") for message in messages if _is_system(message)][1:]
    return any(isinstance(text, str) and text.strip() not in response.prompt for text in further)


def _is_system(message: Any) -> bool:
    return isinstance(message, Mapping) and message.get("role") in ("system", "developer")


def accepted(formatter: Callable[..., Any], messages: Sequence[Any], **fields: Any) -> Sequence[Any]:
    """Messages in a form that a template accepts; unchanged if no form is accepted."""
    seen: list[Any] = []

    def noting(*, messages: Sequence[Any], **fields: Any) -> Any:
        response = formatter(messages=messages, **fields)
        seen.append(messages)
        return response

    with contextlib.suppress(Exception):
        render(noting, messages, **fields)
    return seen[0] if seen else messages


def _say_once(formatter: Callable[..., Any], names: tuple[str, ...]) -> None:
    key = (hash(getattr(formatter, "template", "")), names)
    if key not in _said:
        _said.add(key)
        made = ", ".join(names)
        _logger.warning(f"the chat template refuses a conversation as it was sent, and gets it with {made}")


def _changed(messages: Sequence[Any]) -> Iterator[tuple[tuple[str, ...], list[Message]]]:
    """The messages with no, one, two, ... of `_CHANGES`, each with the names of the changes that were made.

    All of them have one system message only: a template that knows roles by their places would misread two.
    """
    if not all(isinstance(message, Mapping) for message in messages):
        return
    one = _one_system_message([dict(message) for message in messages])
    begun: tuple[str, ...] = () if one == list(messages) else (_ONE_SYSTEM,)
    seen = [list(messages)]
    for count in range(len(_CHANGES) + 1):
        for names in itertools.combinations(_CHANGES, count):
            changed = one
            for name in names:
                changed = _CHANGES[name](changed)
            if changed not in seen:
                seen.append(changed)
                yield (*begun, *names), changed


def _one_system_message(messages: list[Message]) -> list[Message]:
    """System messages at the beginning are joined. Later ones become the user's, so that they stay in their places."""
    first = next((at for at, message in enumerate(messages) if not _is_system(message)), len(messages))
    begun = [_joined(messages[:first])] if first else []
    return [
        *begun,
        *({**message, "role": "user"} if _is_system(message) else message for message in messages[first:]),
    ]


def _system_with_the_user(messages: list[Message]) -> list[Message]:
    """A system message becomes the beginning of the user's first message."""
    if messages and _is_system(messages[0]):
        first = {**messages[0], "role": "user"}
        if len(messages) > 1 and messages[1]["role"] == "user":
            return [_joined([first, messages[1]]), *messages[2:]]
        return [first, *messages[1:]]
    return messages


def _alternating(messages: list[Message]) -> list[Message]:
    """Messages of one role in a row are joined, but for results of tools."""
    turns = itertools.groupby(messages, key=lambda message: message["role"])
    return [each for role, turn in turns for each in (turn if role == "tool" else [_joined(list(turn))])]


def _short_ids(messages: list[Message]) -> list[Message]:
    """Ids of calls have nine letters and digits."""

    def short(given: Any) -> Any:
        is_short = isinstance(given, str) and len(given) == _ID_SIZE and given.isascii() and given.isalnum()
        return given if is_short else hashlib.sha256(str(given).encode()).hexdigest()[:_ID_SIZE]

    changed = []
    for message in messages:
        if calls := message.get("tool_calls"):
            message = {**message, "tool_calls": [{**each, "id": short(each.get("id"))} for each in calls]}
        if message["role"] == "tool":
            message = {**message, "tool_call_id": short(message.get("tool_call_id"))}
        changed.append(message)
    return changed


def _single_calls(messages: list[Message]) -> list[Message]:
    """Each call has a message of its own, followed by its result."""
    changed: list[Message] = []
    results = [message for message in messages if message["role"] == "tool"]
    for message in messages:
        calls = message.get("tool_calls") or []
        if len(calls) < 2:
            changed += [message] if all(message is not each for each in changed) else []
            continue
        for number, call in enumerate(calls):
            content = message.get("content") if number == 0 else ""
            changed.append({**message, "content": content, "tool_calls": [call]})
            changed += [each for each in results if each.get("tool_call_id") == call.get("id")]
    return changed


def _calls_as_text(messages: list[Message]) -> list[Message]:
    """Calls of tools become text of the assistant's, and results text of the user's."""
    changed = []
    for message in messages:
        message = {**message}
        for call in message.pop("tool_calls", None) or ():
            function = call.get("function", call)
            said = f"{function.get('name')}({function.get('arguments')})"
            message["content"] = _both(message.get("content"), said)
        if message["role"] == "tool":
            message["role"] = "user"
        changed.append(message)
    return changed


_CHANGES: dict[str, Callable[[list[Message]], list[Message]]] = {
    "single calls": _single_calls,
    "ids of nine characters": _short_ids,
    "calls and results as text": _calls_as_text,
    "the system message in the user's first one": _system_with_the_user,
    "turns of one role joined": _alternating,
}
"""The changes besides `_one_system_message`, by their names in the log. They are made in this order."""


def _joined(messages: list[Message]) -> Message:
    """One message with the contents and the calls of several messages of the same role."""
    joined = {**messages[0]}
    for message in messages[1:]:
        calls = [*(joined.get("tool_calls") or ()), *(message.get("tool_calls") or ())]
        joined = {**message, **joined, "content": _both(joined.get("content"), message.get("content"))}
        if calls:
            joined["tool_calls"] = calls
    return joined


def _both(one: Any, other: Any) -> Any:
    """Two contents as one: texts, or lists of parts."""
    if not one or not other:
        return one or other
    if isinstance(one, str) and isinstance(other, str):
        return f"{one}\n\n{other}"
    return [*_parts(one), *_parts(other)]


def _parts(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
