"""Checks the arguments of ``create_chat_completion``.

An argument that llama_cpp would ignore is refused, or brought into a form that llama_cpp reads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from llama_cpp.llama_chat_format import _grammar_for_response_format

from specllama.drop_in.arguments import checked_stops, nearest
from specllama.drop_in.base_class import BaseLlama
from specllama.drop_in.images import reads_images, require_room_for_words
from specllama.drop_in.parts import TEXTS, other_parts, text_of

from .depth import require_few_levels
from .messages import as_read, hands_on_everything, has_own_handler

_MESSAGE = "[{'role': 'user', 'content': 'Hello'}]"
_PART = "{'type': 'text', 'text': 'Hello'}"
_OF_MESSAGE = (
    *("role", "content", "name", "tool_calls", "tool_call_id", "function_call"),
    *("refusal", "annotations", "audio", "reasoning", "reasoning_content", "thinking"),  # fields that answers have
)
_OF_FORMAT = {"type", "schema", "json_schema", "strict"}
_OF_JSON_SCHEMA = {"name", "description", "schema", "strict"}
_OF_FUNCTION = {"name", "description", "parameters", "strict", "return"}
_FORMATS = ("text", "json_object", "json_schema")
_NO_PARAMETERS = {"type": "object", "properties": {}}  # OpenAI's meaning of a function without parameters
_NESTED = {
    **{name: name for name in ("messages", "tools", "functions")},
    "response_format": "the schema of response_format",
}
CHOICES = (None, "none", "auto")
"""Values of ``tool_choice`` and ``function_call`` that force no call."""


def checked_chat(llama: BaseLlama, given: Mapping[str, Any]) -> dict[str, Any]:
    """Check the arguments of a chat, and bring them into the form that llama_cpp's chat handlers read.

    Args:
        llama: the Llama that answers.
        given: the arguments of ``create_chat_completion`` that the caller has given.

    Returns:
        The arguments, in the form for a chat handler.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument has a wrong value, or would be ignored.
    """
    chat = {**given, "messages": _plain(given.get("messages"))}
    for name, what in _NESTED.items():
        require_few_levels(chat.get(name), what)
    _check_messages(llama, chat["messages"])
    for name in ("tools", "functions"):
        if not isinstance(chat.get(name) or [], (list, tuple)):
            raise TypeError(f"{name}={chat[name]!r:.100} must be a list of what may be called, or None")
    checked_stops(chat.get("stop"))
    forced = _forced_function(chat)
    answer = chat.get("response_format")
    check_format(answer)
    if answer is not None:
        chat["response_format"] = answer = as_llama_cpp_has_it(answer)
    is_json = answer is not None and answer["type"] == "json_object"
    rules = {forced: forced, "response_format": is_json, "grammar": chat.get("grammar") is not None}
    names = [name for name, is_given in rules.items() if is_given]
    if len(names) > 1:
        raise ValueError(f"{names[0]} and {names[1]} both say what the answer must be, and only one can: leave one out")
    if chat.get("top_logprobs") and not chat.get("logprobs"):
        raise ValueError(f"top_logprobs={chat['top_logprobs']} needs logprobs=True: give that, too")
    if chat.get("logprobs") and chat.get("top_logprobs") is None:
        chat["top_logprobs"] = 0  # llama_cpp gives no logprobs for None
    if chat.get("tools"):
        chat["tools"] = with_parameters(list(chat["tools"]))
    if chat.get("functions"):
        chat["functions"] = [_function_with_parameters(function) for function in chat["functions"]]
    chat["messages"] = as_read(llama, chat["messages"])
    return chat


def left_out_by_handlers(llama: BaseLlama, chat: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that some of llama_cpp's chat handlers do not pass on to the completion.

    A handler that the user has written is left as it is: none of its arguments are replaced.

    Args:
        llama: the Llama that answers.
        chat: the arguments of the chat, checked.

    Returns:
        Arguments for ``create_completion``; none if the handler passes on everything, or is the user's.
    """
    if has_own_handler(llama) or hands_on_everything(llama):
        return {}
    given = {name: chat.get(name) for name in ("seed", "logit_bias")}
    given["stop"] = checked_stops(chat.get("stop")) or None
    given["logprobs"] = chat.get("top_logprobs") if chat.get("logprobs") else None
    answer = chat.get("response_format")
    if not (chat.get("tools") or chat.get("functions")):
        given["grammar"] = chat.get("grammar") if answer is None else _grammar_for_response_format(answer)
    return {name: value for name, value in given.items() if value is not None}


def with_left_out(options: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that a chat handler gives ``create_completion``, and those that the handler has dropped.

    Args:
        options: the arguments that the handler gives.
        asked: the result of `left_out_by_handlers`.
    """
    stops = {name: [*checked_stops(options.get(name)), *asked[name]] for name in ("stop",) if name in asked}
    missing = {name: value for name, value in asked.items() if options.get(name) is None}
    return {**options, **missing, **stops}


def check_format(answer: Any) -> None:
    """Check a ``response_format``, in llama_cpp's form or in OpenAI's.

    Raises:
        TypeError: the format is no dict.
        ValueError: its type or a field is unknown.
    """
    if answer is None:
        return
    if not isinstance(answer, Mapping):
        raise TypeError(f"response_format={answer!r:.100} must be a dict, such as {{'type': 'json_object'}}")
    kind = answer.get("type")
    if kind not in _FORMATS:
        raise ValueError(f"response_format has the type {kind!r:.100}: it must be one of {', '.join(_FORMATS)}")
    require_known("response_format", answer, _OF_FORMAT)
    require_known("json_schema", answer.get("json_schema"), _OF_JSON_SCHEMA)


def as_llama_cpp_has_it(answer: Any) -> Any:
    """A ``response_format`` in llama_cpp's form, which has the schema of OpenAI's ``json_schema`` at its top.

    Raises:
        ValueError: the format is of type ``json_schema`` and has no schema.
    """
    if not isinstance(answer, Mapping) or answer.get("type") != "json_schema":
        return answer
    schema = answer.get("json_schema")
    if not isinstance(schema, Mapping) or not isinstance(schema.get("schema"), Mapping):
        raise ValueError("response_format of type json_schema needs json_schema.schema, an object")
    return {"type": "json_object", "schema": schema["schema"]}


def check_request(body: Mapping[str, Any]) -> None:
    """Check that a request's body has no unknown fields. The server's types refuse malformed values later.

    Raises:
        ValueError: a field is unknown.
    """
    answer = body.get("response_format")
    require_known("response_format", answer, _OF_FORMAT)
    if isinstance(answer, Mapping):
        require_known("json_schema", answer.get("json_schema"), _OF_JSON_SCHEMA)
    functions = body.get("functions")
    for function in functions if isinstance(functions, list) else ():
        require_known("a function", function, _OF_FUNCTION)
    tools = body.get("tools")
    for tool in tools if isinstance(tools, list) else ():
        require_known("a tool", tool, {"type", "function"})
        if isinstance(tool, Mapping):
            require_known("a function", tool.get("function"), _OF_FUNCTION)


def with_parameters(tools: Any) -> Any:
    """Tools with the fields that llama_cpp and chat templates expect. Malformed tools are returned as they are.

    Each function gets ``parameters``, which llama_cpp requires. ``strict`` is removed: templates print all fields of a
    function, and no model was trained with ``strict``.
    """
    if not isinstance(tools, list):
        return tools
    return [
        {**tool, "function": _function_with_parameters(tool["function"])}
        if isinstance(tool, dict) and isinstance(tool.get("function"), dict)
        else tool
        for tool in tools
    ]


def _function_with_parameters(function: Any) -> Any:
    if not isinstance(function, Mapping):
        return function
    kept = {name: value for name, value in function.items() if name != "strict"}
    return {**kept, "parameters": function.get("parameters") or _NO_PARAMETERS}


def require_known(what: str, given: Any, known: set[str]) -> None:
    """Check the fields of a dict. A value of another type has no fields, and passes.

    Raises:
        ValueError: the dict has a field that is not in `known`.
    """
    for name in given.keys() - known if isinstance(given, Mapping) else ():
        raise ValueError(f"{what} has no field {name!r:.60}{nearest(str(name)[:60], sorted(known))}")


def _plain(messages: Any) -> Any:
    """The messages as dicts. In the openai package some are objects, for example the messages of its answers."""
    if not isinstance(messages, (list, tuple)):
        return messages
    return [
        message.model_dump(exclude_none=True) if hasattr(message, "model_dump") else message for message in messages
    ]


def _check_messages(llama: BaseLlama, messages: Any) -> None:
    if not isinstance(messages, (list, tuple)):
        raise TypeError(f"messages={messages!r:.100} must be a list of messages, such as {_MESSAGE}")
    if not messages:
        raise ValueError(f"there are no messages: give one at least, such as {_MESSAGE}")
    if reads_images(llama):
        require_room_for_words(llama, messages)
    is_ours = not has_own_handler(llama)
    templates = "".join(text for name, text in llama.metadata.items() if name.startswith("tokenizer.chat_template"))
    for message in messages:
        if not isinstance(message, Mapping):
            raise TypeError(f"the message {message!r:.100} must be a dict, such as in {_MESSAGE}")
        if not isinstance(message.get("role"), str):
            raise ValueError(f"the message {message!r:.100} has no role: give one, such as in {_MESSAGE}")
        if is_ours:
            _check_content(message)
        # Chat templates may read more fields, and so may handlers that the user has written.
        unknown = {} if llama.chat_handler else {name: None for name in message if name not in _OF_MESSAGE}
        read = {name for name in unknown if re.search(rf"\b{re.escape(str(name))}\b", templates)}
        require_known("a message", unknown, {*_OF_MESSAGE, *read})
    if llama.chat_handler is None:
        for kind in other_parts(messages):
            raise ValueError(
                f"a message has a part of type {kind!r:.60}, and this Llama reads only text: create it with a "
                "chat_handler for images, or send text"
            )


def _check_content(message: Mapping[str, Any]) -> None:
    content, calls = message.get("content"), message.get("tool_calls")
    if content is not None and not isinstance(content, (str, list, tuple)):
        raise TypeError(
            f"the content {content!r:.100} of a message must be a text, or a list of parts: write a result of a tool "
            "as text, as by json.dumps"
        )
    if calls is not None and not isinstance(calls, (list, tuple)):
        raise TypeError(f"tool_calls={calls!r:.100} of a message must be a list of calls, as answers have it")
    for part in content if isinstance(content, (list, tuple)) else ():
        if not isinstance(part, Mapping) or (part.get("type") in TEXTS and text_of(part) is None):
            raise TypeError(f"the part {part!r:.100} of a message must be a dict, such as {_PART}")


def _forced_function(given: Mapping[str, Any]) -> str:
    """The name of the argument that forces a call of a function; empty if no argument does.

    Raises:
        ValueError: the argument is malformed, or names a function that is not among the tools.
    """
    for one, other in (("tools", "functions"), ("tool_choice", "function_call")):
        if given.get(one) and given.get(other):
            raise ValueError(f"{one} and {other} mean the same: leave out {other}, its older name")
    name = "function_call" if given.get("function_call") else "tool_choice"
    choice = given.get(name)
    if choice in CHOICES:
        return ""
    functions = [*(given.get("functions") or ()), *(_function_of(tool) for tool in given.get("tools") or ())]
    known = [function.get("name") for function in functions if isinstance(function, Mapping)]
    if choice == "required" and name == "tool_choice":
        if not any(map(is_name, known)):
            raise ValueError("tool_choice='required' and there are no tools with a name: give them, too")
        return name
    wanted = (choice if name == "function_call" else _function_of(choice)) if isinstance(choice, Mapping) else None
    if not isinstance(wanted, Mapping) or not isinstance(wanted.get("name"), str):
        required = "" if name == "function_call" else "'required', "
        form = "{'name': ...}" if name == "function_call" else "{'type': 'function', 'function': {'name': ...}}"
        raise ValueError(
            f"{name}={choice!r:.100} must be 'none', 'auto', {required}or {form} with the name of a function"
        )
    if not known:
        raise ValueError(f"{name} names the function {wanted['name']!r:.60}, and there are no tools: give them, too")
    if wanted["name"] not in known:
        hint = nearest(wanted["name"], [other for other in known if isinstance(other, str)])
        raise ValueError(f"{name} names the function {wanted['name']!r:.60}, which is not among the tools{hint}")
    return name


def is_name(given: Any) -> bool:
    """Whether a value can be the name of a function: a string that is not empty."""
    return isinstance(given, str) and bool(given)


def _function_of(tool: Any) -> Any:
    return tool.get("function") if isinstance(tool, Mapping) else None
