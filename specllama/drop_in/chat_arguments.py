"""Arguments of create_chat_completion that llama_cpp would pass over: each is refused by its name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .arguments import checked_stops, nearest
from .base_class import BaseLlama
from .images import other_parts, reads_images, require_room_for_words

_MESSAGE = "[{'role': 'user', 'content': 'Hello'}]"
_OF_MESSAGE = (
    *("role", "content", "name", "tool_calls", "tool_call_id", "function_call"),
    *("refusal", "annotations", "audio", "reasoning", "reasoning_content", "thinking"),  # of answers, sent back
)
_OF_FORMAT = {"type", "schema", "json_schema", "strict"}
_OF_JSON_SCHEMA = {"name", "description", "schema", "strict"}
_OF_FUNCTION = {"name", "description", "parameters", "strict", "return"}
_FORMATS = ("text", "json_object")
_CHOICES = (None, "none", "auto")


def check_chat(llama: BaseLlama, given: Mapping[str, Any]) -> None:
    """Look at the arguments of a chat.

    Args:
        llama: who answers.
        given: those arguments of ``create_chat_completion`` that the caller gave.

    Raises:
        TypeError: one of another type.
        ValueError: one that would be passed over.
    """
    _check_messages(llama, given.get("messages"))
    for name in ("tools", "functions"):
        if not isinstance(given.get(name) or [], (list, tuple)):
            raise TypeError(f"{name}={given[name]!r:.100} must be a list of what may be called, or None")
    checked_stops(given.get("stop"))
    forced = _forced_function(given)
    answer = given.get("response_format")
    check_format(answer)
    is_json = answer is not None and answer["type"] == "json_object"
    rules = {forced: forced, "response_format": is_json, "grammar": given.get("grammar") is not None}
    names = [name for name, is_given in rules.items() if is_given]
    if len(names) > 1:
        raise ValueError(f"{names[0]} and {names[1]} both say what the answer must be, and only one can: leave one out")
    if given.get("top_logprobs") and not given.get("logprobs"):
        raise ValueError(f"top_logprobs={given['top_logprobs']} is for logprobs=True: give that, too")


def check_format(answer: Any) -> None:
    """Look at ``response_format``: ours, or OpenAI's.

    Raises:
        TypeError: no dict.
        ValueError: of an unknown type, or with a field that is unknown.
    """
    if answer is None:
        return
    if not isinstance(answer, Mapping):
        raise TypeError(f"response_format={answer!r:.100} must be a dict, such as {{'type': 'json_object'}}")
    kind = answer.get("type")
    if kind not in _FORMATS:
        hint = "; give the schema as {'type': 'json_object', 'schema': ...}" if kind == "json_schema" else ""
        raise ValueError(f"response_format has the type {kind!r:.100}: it must be one of {', '.join(_FORMATS)}{hint}")
    require_known("response_format", answer, _OF_FORMAT)


def check_request(body: Mapping[str, Any]) -> None:
    """Look for fields of a request that are not handed on. What is malformed is left to the types.

    Raises:
        ValueError: one that is unknown.
    """
    answer = body.get("response_format")
    if isinstance(answer, Mapping):
        require_known("response_format", answer, _OF_FORMAT)
        if isinstance(answer.get("json_schema"), Mapping):
            require_known("json_schema", answer["json_schema"], _OF_JSON_SCHEMA)
    functions = body.get("functions")
    for function in functions if isinstance(functions, list) else ():
        require_known("a function", function, _OF_FUNCTION)
    tools = body.get("tools")
    for tool in tools if isinstance(tools, list) else ():
        require_known("a tool", tool, {"type", "function"})
        if isinstance(tool, Mapping):
            require_known("a function", tool.get("function"), _OF_FUNCTION)


def require_known(what: str, given: Any, known: set[str]) -> None:
    """Raises ValueError if a dict has another field than these."""
    for name in given.keys() - known if isinstance(given, Mapping) else ():
        raise ValueError(f"{what} has no field {name!r:.60}{nearest(str(name)[:60], sorted(known))}")


def _check_messages(llama: BaseLlama, messages: Any) -> None:
    if not isinstance(messages, (list, tuple)):
        raise TypeError(f"messages={messages!r:.100} must be a list of messages, such as {_MESSAGE}")
    if not messages:
        raise ValueError(f"there are no messages: give one at least, such as {_MESSAGE}")
    if llama.chat_handler is None:
        for kind in other_parts(messages):
            raise ValueError(
                f"a message has a part of type {kind!r:.60}, and this Llama reads only text: create it with a "
                "chat_handler for images, or send text"
            )
    if reads_images(llama):
        require_room_for_words(llama, messages)
    templates = "".join(text for name, text in llama.metadata.items() if name.startswith("tokenizer.chat_template"))
    for message in messages:
        if not isinstance(message, Mapping):
            raise TypeError(f"the message {message!r:.100} must be a dict, such as in {_MESSAGE}")
        if not isinstance(message.get("role"), str):
            raise ValueError(f"the message {message!r:.100} has no role: give one, such as in {_MESSAGE}")
        # Templates may know more fields, and handlers that the user has written.
        unknown = {} if llama.chat_handler else {name: None for name in message if name not in _OF_MESSAGE}
        read = {name for name in unknown if re.search(rf"\b{re.escape(str(name))}\b", templates)}
        require_known("a message", unknown, {*_OF_MESSAGE, *read})


def _forced_function(given: Mapping[str, Any]) -> str:
    """Which argument says that a function must be called; empty if none does."""
    for one, other in (("tools", "functions"), ("tool_choice", "function_call")):
        if given.get(one) and given.get(other):
            raise ValueError(f"{one} and {other} mean the same: leave out {other}, its older name")
    name = "function_call" if given.get("function_call") else "tool_choice"
    choice = given.get(name)
    if choice in _CHOICES:
        return ""
    functions = [*(given.get("functions") or ()), *(_function_of(tool) for tool in given.get("tools") or ())]
    known = [function.get("name") for function in functions if isinstance(function, Mapping)]
    wanted = (choice if name == "function_call" else _function_of(choice)) if isinstance(choice, Mapping) else None
    if not isinstance(wanted, Mapping) or not isinstance(wanted.get("name"), str):
        form = "{'name': ...}" if name == "function_call" else "{'type': 'function', 'function': {'name': ...}}"
        raise ValueError(f"{name}={choice!r:.100} must be 'none', 'auto', or {form} with the name of a function")
    if not known:
        raise ValueError(f"{name} names the function {wanted['name']!r:.60}, and there are no tools: give them, too")
    if wanted["name"] not in known:
        hint = nearest(wanted["name"], [other for other in known if isinstance(other, str)])
        raise ValueError(f"{name} names the function {wanted['name']!r:.60}, which is not among the tools{hint}")
    return name


def _function_of(tool: Any) -> Any:
    return tool.get("function") if isinstance(tool, Mapping) else None
