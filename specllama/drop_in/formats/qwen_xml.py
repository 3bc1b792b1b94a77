"""``<function=NAME><parameter=KEY>VALUE</parameter></function>`` within ``<tool_call>``: Qwen3-Coder and Qwen3.5."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from .format import Format
from .json_calls import escaped, json_or_string
from .reading import Parsing, Reading, closing, literally, text_until

_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"


def _called(reading: Reading, mark: str) -> Parsing[None]:
    at = reading.at
    if mark == _CALL and not (yield from closing(reading, _FUNCTION)):
        reading.content(mark)
        return
    name: list[str] = []
    found = yield from text_until(reading, name.append, (">",))
    if not found or not "".join(name).strip():
        reading.content(mark + reading.since(at))
        return
    reading.call("".join(name).strip())
    if (yield from _arguments(reading, _types(reading.tools.get("".join(name).strip())))):
        reading.arguments("}")
    yield from closing(reading, _CALL_END)


def _arguments(reading: Reading, types: Mapping[str, Any]) -> Parsing[bool]:
    """Reads parameters, and whether all of them are there."""
    before = "{"
    while (yield from closing(reading, _PARAMETER)):
        key: list[str] = []
        if not (yield from text_until(reading, key.append, (">",))):
            return False
        yield from literally(reading, "\n")
        name = "".join(key).strip()
        reading.arguments(before + json.dumps(name, ensure_ascii=False) + ": ")
        before = ", "
        if not (yield from (_text if types.get(name) == "string" else _value)(reading, reading.arguments)):
            return False
    is_whole = (yield from closing(reading, _FUNCTION_END)) or (yield from closing(reading, _CALL_END))
    if before == "{":
        reading.arguments("{")
    return is_whole


def _text(reading: Reading, write: Callable[[str], None]) -> Parsing[str]:
    """Writes a value as a string, without the line break that ends it."""
    held = ""

    def add(character: str) -> None:
        nonlocal held
        write(escaped(held))
        held = character if character == "\n" else ""
        write(escaped("" if held else character))

    write('"')
    found = yield from text_until(reading, add, (_PARAMETER_END,))
    write('"' if found else "")
    return found


def _value(reading: Reading, write: Callable[[str], None]) -> Parsing[str]:
    """Writes a value as it is, if it is JSON, else as a string."""
    value: list[str] = []
    found = yield from text_until(reading, value.append, (_PARAMETER_END,))
    text = "".join(value).removesuffix("\n")
    write(json_or_string(text) if found else text)
    return found


def _types(schema: Any) -> dict[str, Any]:
    """Of the parameters of a tool, as far as its schema says them."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping):
        return {}
    return {name: part.get("type") for name, part in properties.items() if isinstance(part, Mapping)}


QWEN_XML = Format(
    "qwen-xml",
    lambda template: all(mark in template for mark in (_CALL, _FUNCTION, _PARAMETER)),
    {_CALL: _called, _FUNCTION: _called},
    marks=(_CALL_END,),
)
