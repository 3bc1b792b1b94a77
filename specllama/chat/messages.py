"""Brings the messages of a chat into the form that the model's chat template reads.

OpenAI's API has several forms of one message. A template is written for one of them. It leaves out messages in other
forms, or prints them as Python prints objects. We find out which form a template reads by rendering test messages.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import json
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jinja2.meta
from llama_cpp import llama_chat_format

from specllama.drop_in.base_class import BaseLlama
from specllama.drop_in.chat_templates import OF_FILE
from specllama.drop_in.images import reads_images
from specllama.drop_in.parts import text_of

from .depth import require_few_levels
from .formats.kinds import says_calls

Fields = dict[str, Any]

_HELLO = {"role": "user", "content": "Hello"}
_ARGUMENTS = {"first_argument": "of_the_call"}
_ID = "call00001"  # nine characters, as some templates require
_NAME = "some_function"
_TOOL = {
    "type": "function",
    "function": {"name": _NAME, "description": "", "parameters": {"type": "object", "properties": {}}},
}


@dataclasses.dataclass(frozen=True)
class _Form:
    """The form that a template reads. The defaults are what most templates read.

    Attributes:
        developer: the template reads the role ``developer``. Other templates call this role ``system``.
        parts: the text of a message must be a part in a list.
        keeps_parts: the template reads lists of parts in the user's messages.
        objects: the arguments of a call may be an object. Other templates read them as a JSON string.
        none: the content of a message with a call must be None, and not an empty string.
        newer: the template reads ``tool_calls`` and the role ``tool``, and not ``function_call`` and ``function``.
        thinking: the template reads thoughts before a call from the field ``thinking``. In answers this field is called
            ``reasoning_content``.
        says: writes calls as text, because the template reads them in the text; None if it reads ``tool_calls``.
    """

    developer: bool = False
    parts: bool = False
    keeps_parts: bool = False
    objects: bool = False
    none: bool = False
    newer: bool = False
    thinking: bool = False
    says: Callable[[Sequence[tuple[str, Any]]], str] | None = None


def as_read(llama: BaseLlama, messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Messages in the form that a Llama's chat handler reads.

    For example, parts of text are joined, ``developer`` becomes ``system``, and a missing content becomes an empty
    string, each only if the template needs it. A handler that the user has written gets the messages unchanged.

    Args:
        llama: the Llama with the handler.
        messages: the checked messages.
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
    """Turn errors of the chat template into a ValueError: the template was not written for these messages.

    Raises:
        ValueError: the template has raised any exception.
    """
    try:
        yield
    except Exception as error:
        if any(frame.f_code.co_filename == "<template>" for frame, _ in traceback.walk_tb(error.__traceback__)):
            raise ValueError(f"the model's chat template cannot render these messages: {error}") from error
        raise


def has_own_handler(llama: BaseLlama) -> bool:
    """Whether the user has written the chat handler. We do not know which form of messages such a handler reads."""
    handler = llama.chat_handler
    return handler is not None and formatter_of(handler) is None and not reads_images(llama)


def hands_on_everything(llama: BaseLlama) -> bool:
    """Whether the chat handler passes all arguments of a chat on to the completion; some of llama_cpp's do not."""
    return formatter_of(handler_for(llama)) is not None or reads_images(llama)


def _named_handler(llama: BaseLlama) -> Any:
    """The chat handler of the file's template, or of llama_cpp, that the Llama's ``chat_format`` names."""
    name: Any = llama.chat_format
    return llama._chat_handlers.get(name) or llama_chat_format.get_chat_completion_handler(name)


def template_of(llama: BaseLlama) -> str:
    """The chat template that makes the prompts; empty if no chat template that we know makes them."""
    if has_own_handler(llama):
        return ""
    template = getattr(llama.chat_handler, "CHAT_FORMAT", None)
    return str(template or getattr(formatter_for(llama), "template", ""))


def handler_for(llama: BaseLlama) -> Any:
    """The chat handler that makes the prompts."""
    return llama.chat_handler or _named_handler(llama)


def names_read(llama: BaseLlama) -> frozenset[str]:
    """The names of all variables that the chat template reads from outside."""
    return _names_in(template_of(llama))


def prompt_around(llama: BaseLlama) -> str:
    """A rendered prompt of short messages, which shows the text around each message; empty if there is no template."""
    formatter = formatter_for(llama)
    return "" if formatter is None else _prompt_around(formatter)


@functools.lru_cache(maxsize=32)
def _prompt_around(formatter: Any) -> str:
    return _rendered(formatter, "Hello", {"role": "assistant", "content": "Hello"}, _HELLO)


def _form_for(llama: BaseLlama) -> _Form | None:
    if has_own_handler(llama):
        return None
    if hasattr(llama.chat_handler, "CHAT_FORMAT"):  # a handler of llama_cpp's for images, with its own template
        return _Form(keeps_parts=True)
    formatter = formatter_for(llama)
    is_known = getattr(formatter, "__module__", None) == llama_chat_format.__name__
    return _form_of(formatter) if is_known else _Form()


def formatter_for(llama: BaseLlama) -> Any:
    """llama_cpp's formatter that writes the prompts; None if it is not known."""
    if reads_images(llama):  # a handler for images without a template of its own uses the model's template
        return formatter_of(llama._chat_handlers.get(OF_FILE))
    return formatter_of(handler_for(llama))


def formatter_of(handler: Any) -> Any:
    """The formatter inside one of llama_cpp's usual chat handlers; None for any other handler."""
    return inspect.getclosurevars(handler).nonlocals.get("chat_formatter") if inspect.isfunction(handler) else None


@functools.lru_cache(maxsize=32)
def _names_in(template: str) -> frozenset[str]:
    try:
        environment = llama_chat_format.Jinja2ChatFormatter(template, "", "")._environment.environment
        return frozenset(jinja2.meta.find_undeclared_variables(environment.parse(template)))
    except Exception:  # of jinja or Python. A chat that needs this template raises the error again.
        return frozenset()


@functools.lru_cache(maxsize=32)
def _form_of(formatter: Any) -> _Form:
    template = str(getattr(formatter, "template", ""))
    objects, none = _form_of_calls(formatter)
    parts = [{"type": "text", "text": _NAME}]
    said = says_calls(template)
    return _Form(
        developer="developer" in template,
        parts=all((_NAME in _rendered(formatter, text)) == (text is parts) for text in (_NAME, parts)),
        objects=objects or said is not None,
        none=none,
        newer="tool_calls" in template and re.search(r"\bfunction_call\b", template) is None,
        thinking=re.search(r"\.thinking\b", template) is not None and "reasoning_content" not in template,
        says=None if said is None else said.says,
    )


def _form_of_calls(formatter: Any) -> tuple[bool, bool]:
    """The fields ``objects`` and ``none`` of `_Form`."""
    for tools in (None, [_TOOL]):
        for content in ("", None):
            for arguments in (_ARGUMENTS, json.dumps(_ARGUMENTS)):  # an object first: models were trained with it
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
    # A quoted name shows that the template has printed the dict as Python does.
    return all(text in prompt for text in (_NAME, name, value)) and repr(name) not in prompt


def _rendered(formatter: Any, content: Any, *more: Fields, tools: Any = None) -> str:
    """The rendered prompt; empty if the template refuses the messages."""
    try:
        return str(formatter(messages=[{**_HELLO, "content": content}, *more], tools=tools).prompt)
    except Exception:  # templates may raise anything
        return ""


def _in_newer_form(fields: Fields, known_as: str) -> Fields:
    """A message with OpenAI's old ``function_call``, or with a call's result, in the newer form with ``tool_calls``."""
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
    if calls and form.says is not None:
        functions = [each["function"] for call in calls if (each := _call(call, form)) is not call]
        said = form.says([(function.get("name"), function["arguments"]) for function in functions])
        content = fields["content"]
        fields["content"] = [*content, {"type": "text", "text": said}] if isinstance(content, list) else content + said
    elif calls:
        fields["tool_calls"] = [_call(call, form) for call in calls]
        # gpt-oss reads either the content or the thinking of a message with calls.
        if form.thinking and not fields["content"] and "reasoning_content" in fields:
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
        with contextlib.suppress(ValueError, RecursionError):  # a model may have written what is no JSON, or too deep
            found = json.loads(arguments)
            require_few_levels(found, "arguments")
            arguments = found if isinstance(found, dict) else arguments
    elif not form.objects and isinstance(arguments, Mapping):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}
