"""Messages of a chat, in the form in which the model's chat template reads them.

OpenAI's API has several forms of the same message. Templates are written for one of them each, and print others as
Python does, or leave them out. Which one it is, is tried with messages of our own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import json
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jinja2.meta
from llama_cpp import llama_chat_format

from .base_class import BaseLlama
from .images import reads_images
from .parts import text_of

Fields = dict[str, Any]

_HELLO = {"role": "user", "content": "Hello"}
_ARGUMENTS = {"first_argument": "of_the_call"}
_ID = "call00001"  # some templates want nine characters
_NAME = "some_function"
_TOOL = {
    "type": "function",
    "function": {"name": _NAME, "description": "", "parameters": {"type": "object", "properties": {}}},
}


@dataclasses.dataclass(frozen=True)
class _Form:
    """What a template reads. As it is here, the form that most read.

    Attributes:
        developer: it knows the role, which is called ``system`` else.
        parts: a text must be a part of a list.
        keeps_parts: it reads lists of parts of users as they are.
        objects: the arguments of a call may be an object. Else they must be its JSON.
        none: the content of a call must be None, not an empty text.
        newer: it knows ``tool_calls`` and the role ``tool``, and not their older names.
        thinking: it calls the thoughts before a call so, which are ``reasoning_content`` in answers.
    """

    developer: bool = False
    parts: bool = False
    keeps_parts: bool = False
    objects: bool = False
    none: bool = False
    newer: bool = False
    thinking: bool = False


def as_read(llama: BaseLlama, messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Messages in the form that the chat handler of a Llama reads.

    Parts of text become one text, ``developer`` becomes ``system``, no content is an empty one, the arguments of
    earlier calls are an object or its JSON: whatever the template reads. A handler that the user has written gets the
    messages as they are.

    Args:
        llama: who has the handler.
        messages: the same, checked.
    """
    form = _form_for(llama)
    if form is None:
        return list(messages)
    read: list[Fields] = []
    last_id = _ID
    for number, message in enumerate(messages):
        fields = {name: value for name, value in message.items() if value is not None}
        if form.newer and (fields["role"] == "function" or isinstance(fields.get("function_call"), Mapping)):
            last_id = last_id if fields["role"] == "function" else f"call{number:05}"
            fields = _in_newer_form(fields, last_id)
        read.append(_read(fields, form))
    return read


@contextlib.contextmanager
def template_errors() -> Iterator[None]:
    """Whatever the chat template raises is due to messages that it was not written for.

    Raises:
        ValueError: in place of it.
    """
    try:
        yield
    except Exception as error:
        if any(frame.f_code.co_filename == "<template>" for frame, _ in traceback.walk_tb(error.__traceback__)):
            raise ValueError(f"the model's chat template cannot render these messages: {error}") from error
        raise


def has_own_handler(llama: BaseLlama) -> bool:
    """Whether the user has written what makes a prompt of messages: nobody else knows what it reads."""
    handler = llama.chat_handler
    return handler is not None and _formatter_of(handler) is None and not reads_images(llama)


def hands_on_everything(llama: BaseLlama) -> bool:
    """Whether what makes prompts asks for completions with all arguments of a chat. Some of llama_cpp's do not."""
    return _formatter_of(handler_for(llama)) is not None or reads_images(llama)


def _named_handler(llama: BaseLlama) -> Any:
    """That of a template in the file, or of llama_cpp's."""
    name: Any = llama.chat_format
    return llama._chat_handlers.get(name) or llama_chat_format.get_chat_completion_handler(name)


def template_of(llama: BaseLlama) -> str:
    """The chat template that makes the prompts; empty if something else does."""
    if has_own_handler(llama):
        return ""
    own = getattr(llama.chat_handler, "CHAT_FORMAT", None)
    return str(own or getattr(_formatter_for(llama), "template", ""))


def handler_for(llama: BaseLlama) -> Any:
    """What makes the prompts of chats."""
    return llama.chat_handler or _named_handler(llama)


def names_read(llama: BaseLlama) -> frozenset[str]:
    """What the chat template reads and does not set itself."""
    return _names_in(template_of(llama))


def _form_for(llama: BaseLlama) -> _Form | None:
    if has_own_handler(llama):
        return None
    if hasattr(llama.chat_handler, "CHAT_FORMAT"):  # of llama_cpp's handlers for images those with their own templates
        return _Form(keeps_parts=True)
    formatter = _formatter_for(llama)
    is_known = getattr(formatter, "__module__", None) == llama_chat_format.__name__
    return _form_of(formatter) if is_known else _Form()


def _formatter_for(llama: BaseLlama) -> Any:
    """What writes the prompts, if it is known."""
    if reads_images(llama):  # such handlers take the model's template
        return _formatter_of(llama._chat_handlers.get("chat_template.default"))
    return _formatter_of(handler_for(llama))


def _formatter_of(handler: Any) -> Any:
    """What writes the prompts of llama_cpp's usual chat handlers; None if this is another."""
    return inspect.getclosurevars(handler).nonlocals.get("chat_formatter") if inspect.isfunction(handler) else None


@functools.lru_cache(maxsize=32)
def _names_in(template: str) -> frozenset[str]:
    try:
        environment = llama_chat_format.Jinja2ChatFormatter(template, "", "")._environment.environment
        return frozenset(jinja2.meta.find_undeclared_variables(environment.parse(template)))
    except Exception:  # jinja's, or Python's: such a template is refused when it is used
        return frozenset()


@functools.lru_cache(maxsize=32)
def _form_of(formatter: Any) -> _Form:
    template = str(getattr(formatter, "template", ""))
    objects, none = _form_of_calls(formatter)
    parts = [{"type": "text", "text": _NAME}]
    return _Form(
        developer="developer" in template,
        parts=all((_NAME in _rendered(formatter, text)) == (text is parts) for text in (_NAME, parts)),
        objects=objects,
        none=none,
        newer="tool_calls" in template and re.search(r"\bfunction_call\b", template) is None,
        thinking=re.search(r"\.thinking\b", template) is not None and "reasoning_content" not in template,
    )


def _form_of_calls(formatter: Any) -> tuple[bool, bool]:
    """Whether their arguments must be an object, and their content None."""
    for tools in (None, [_TOOL]):
        for content in ("", None):
            for arguments in (_ARGUMENTS, json.dumps(_ARGUMENTS)):  # an object is what models were trained with
                call = {"id": _ID, "type": "function", "function": {"name": _NAME, "arguments": arguments}}
                asked = {"role": "assistant", "content": content, "tool_calls": [call]}
                answered = {"role": "tool", "tool_call_id": _ID, "name": _NAME, "content": "done"}
                prompt = _rendered(formatter, "Hello", asked, answered, tools=tools)
                if _has_call(prompt, arguments) and not (content is None and "None" in prompt):
                    return arguments is _ARGUMENTS, content is None
    return False, False


def _has_call(prompt: str, arguments: Any) -> bool:
    if isinstance(arguments, str):
        return _NAME in prompt and arguments in prompt
    [(name, value)] = arguments.items()
    return all(text in prompt for text in (_NAME, name, value)) and repr(name) not in prompt  # as Python prints it


def _rendered(formatter: Any, content: Any, *more: Fields, tools: Any = None) -> str:
    """The prompt; empty where the template refuses the messages."""
    try:
        return str(formatter(messages=[{**_HELLO, "content": content}, *more], tools=tools).prompt)
    except Exception:  # a template may raise anything
        return ""


def _in_newer_form(fields: Fields, known_as: str) -> Fields:
    """A message with a call, or what came of it, in the form that OpenAI's API has had since there are tools."""
    if fields["role"] == "function":
        return {**fields, "role": "tool", "tool_call_id": known_as}
    function = fields.pop("function_call")
    calls = fields.get("tool_calls") or [{"id": known_as, "type": "function", "function": function}]
    return {**fields, "tool_calls": calls}


def _read(fields: Fields, form: _Form) -> Fields:
    calls = fields.pop("tool_calls", None)
    if fields["role"] == "developer" and not form.developer:
        fields["role"] = "system"
    fields["content"] = _content(fields, form, bool(calls))
    if calls:
        fields["tool_calls"] = [_call(call, form) for call in calls]
        if form.thinking and not fields["content"] and "reasoning_content" in fields:  # gpt-oss has one or the other
            fields["thinking"] = fields.pop("reasoning_content")
    return fields


def _content(fields: Fields, form: _Form, has_calls: bool) -> Any:
    content = fields.get("content") or fields.get("refusal") or ""
    if isinstance(content, (list, tuple)):
        parts = [part if (text := text_of(part)) is None else {"type": "text", "text": text} for part in content]
        has_others = any(text_of(part) is None for part in parts)
        if has_others or form.parts or (form.keeps_parts and fields["role"] == "user"):
            return parts
        return "\n".join(part["text"] for part in parts)
    if form.parts:
        return [{"type": "text", "text": content}]
    return None if not content and has_calls and form.none else content


def _call(call: Any, form: _Form) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return call
    arguments = function.get("arguments") or {}
    if form.objects and isinstance(arguments, str):
        with contextlib.suppress(ValueError, RecursionError):  # what a model wrote need not be JSON
            found = json.loads(arguments)
            arguments = found if isinstance(found, dict) else arguments
    elif not form.objects and isinstance(arguments, Mapping):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}
