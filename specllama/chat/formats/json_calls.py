"""Calls as JSON objects with a name and arguments. The arguments are passed on while they are being written."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable

from .reading import Parsing, Reading, literally, spaces

_NAMES = ("name", "tool_name")
_ARGUMENTS = ("arguments", "parameters")
_KEYS = (*_NAMES, *_ARGUMENTS, "id", "type")
_OF_PYTHON = {"True": "true", "False": "false", "None": "null"}
"""Python's constants, as some chat templates write them in earlier calls, and their JSON."""


def escaped(text: str) -> str:
    """A text escaped as in a JSON string, without the quotes."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def as_json(text: str, *, is_whole: bool = True) -> str:
    """The text itself if it is JSON, JSON of a constant of Python's, and otherwise a JSON string of the text.

    If the text is not whole, because the answer was cut off, the beginning of that.
    """
    if not is_whole:
        words = (value[: len(text)] for word, value in _OF_PYTHON.items() if text and word.startswith(text))
        return next(words, text)
    text = _OF_PYTHON.get(text, text)
    try:
        json.loads(text)
    except ValueError:
        return json.dumps(text, ensure_ascii=False)
    return text


def begun_object(name: str, arguments: str = "arguments") -> str:
    """The beginning of a call of this function as a JSON object, up to the arguments."""
    return f'{{"name": {json.dumps(name)}, "{arguments}": '


def json_value(reading: Reading, write: Callable[[str], None]) -> Parsing[None]:
    """Read one JSON value, and write its text unchanged. Stops before a character that no JSON value has there."""
    depth, in_string, is_escaped = 0, False, False
    at = reading.at
    while character := (yield from reading.next()):
        if in_string:
            in_string = is_escaped or character != '"'
            is_escaped = character == "\\" and not is_escaped
        elif character == '"':
            in_string = True
        elif character in "{[":
            depth += 1
        elif character in "}]" and depth:
            depth -= 1
        elif character == "<" or not (depth or character.isalnum() or character in "+-."):
            reading.back_to(at)  # no JSON value has this character here: it may begin the mark that closes the call
            return
        write(character)
        at = reading.at
        if not depth and not in_string and character in '"}]':
            return


def captured(reading: Reading) -> Parsing[str]:
    """Read one JSON value. Returns its text."""
    parts: list[str] = []
    yield from json_value(reading, parts.append)
    return "".join(parts)


def call_object(reading: Reading, *, known_only: bool = False) -> Parsing[str | None]:
    """Read a call: ``{"name": ..., "arguments": {...}}``.

    The first brace may be doubled, as Qwen2.5-Coder's template has it.

    Args:
        reading: the answer.
        known_only: whether the object may also be ordinary text. Then it is a call only if it has arguments and the
            name of a tool.

    Returns:
        None if the object was a call; otherwise the text that was read.
    """
    start = reading.at
    name, early, is_called = "", "", False
    yield from spaces(reading)
    if not (yield from literally(reading, "{")):
        return reading.since(start)
    is_doubled = yield from literally(reading, "{")  # a plain JSON object cannot begin with two braces
    while True:
        yield from spaces(reading)
        at = reading.at
        character = yield from reading.next()
        if character == ",":
            continue
        if character != '"':
            break
        reading.back_to(at)
        key = _text_of((yield from captured(reading)))
        yield from spaces(reading)
        is_pair = yield from literally(reading, ":")
        if not is_pair or (known_only and key not in _KEYS):
            return None if is_called else reading.since(start)
        yield from spaces(reading)
        if key in _NAMES and not name:
            name = _text_of((yield from captured(reading)))
            if not name or (known_only and name not in reading.tools):
                return reading.since(start)
        elif key in _ARGUMENTS and name and not is_called and (yield from _begins_object(reading)):
            reading.call(name)
            is_called = True
            yield from json_value(reading, reading.arguments)
        else:
            value = yield from captured(reading)
            early = _as_arguments(value) if key in _ARGUMENTS else early
    if character != "}":
        reading.back_to(at)
    elif is_doubled:
        yield from literally(reading, "}")
    if is_called:
        return None
    if not name or not character or (known_only and not (early and character == "}")):
        return reading.since(start)
    reading.call(name)
    reading.arguments(early or "{}")
    return None


def one_object(reading: Reading) -> Parsing[bool]:
    """Read a call as `call_object` does. Returns whether the text was a call."""
    return (yield from call_object(reading)) is None


def _begins_object(reading: Reading) -> Parsing[bool]:
    at = reading.at
    found = yield from literally(reading, "{")
    reading.back_to(at)
    return found


def _text_of(value: str) -> str:
    """The content of a JSON string; empty if the value is anything else."""
    with contextlib.suppress(ValueError):
        found = json.loads(value, strict=False)
        return found if isinstance(found, str) else ""
    return ""


def _as_arguments(value: str) -> str:
    """The JSON of arguments that are no object. Some models write a string with JSON, as OpenAI's API does."""
    return "{}" if value == "null" else _text_of(value) or value
