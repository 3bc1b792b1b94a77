"""Calls as ``<|tool_call_start|>[NAME(KEY="VALUE")]<|tool_call_end|>``, in Python's syntax: LFM2 and LFM2.5."""

from __future__ import annotations

import functools
import json
import re
import string
from collections.abc import Mapping, Sequence
from typing import Any

from .format import Format, Grammar, Regex, Written
from .json_calls import escaped, one_object
from .keyed import with_definitions
from .loose import Loose, Write
from .marked import with_separators
from .reading import Parsing, Reading, listed, literally, spaces, text_until

_CALLS, _END = "<|tool_call_start|>", "<|tool_call_end|>"
_TAUGHT = (_CALLS, "<|tool_list_start|>", '"List of tools: [')  # some templates leave the calls to the messages' texts
_COMMA = Regex(", ?")
_KEY = Regex(r"[A-Za-z_][A-Za-z_0-9]*")
_OF_PYTHON = {"string": r"/'([^'\\]|\\[^ux])*'/", "boolean": '"True" | "False"', "null": '"None"'}
_WITHOUT_EFFECT = {"type", "title", "description", "default"}  # keys of schemas that say no more than the type


def _text(reading: Reading, write: Write) -> Parsing[bool]:
    """Read a text in quotes. A quote ends it only where a value may end: templates escape nothing."""
    quote = '"' if (yield from literally(reading, '"')) else "'"
    if quote == "'" and not (yield from literally(reading, quote)):
        return False
    write('"')
    while character := (yield from reading.next()):
        if character == "\\":
            write((yield from _escape(reading)))
        elif character != quote:
            write(escaped(character))
        else:
            at = reading.at
            yield from spaces(reading)
            behind = yield from reading.next()
            reading.back_to(at)
            if not behind:  # the answer was cut off here
                break
            if behind in ",)]}:=":
                write('"')
                break
            write(escaped(quote))
    return True


def _escape(reading: Reading) -> Parsing[str]:
    """Read what follows a backslash. Returns its JSON. Unknown escapes stay as they are, as in Python."""
    character = yield from reading.next()
    if character == "'" or (character and character in '"\\/bfnrt'):
        return character if character == "'" else f"\\{character}"
    at, digits = reading.at, ""
    while character == "u" and len(digits) < 4:
        digit = yield from reading.next()
        if not digit:  # the answer was cut off here
            return ""
        if digit not in string.hexdigits:
            break
        digits += digit
    if len(digits) == 4:
        return f"\\u{digits}"
    reading.back_to(at)
    return escaped(f"\\{character}") if character else ""


_VALUES = Loose(_text, _END, (")",))


def _one(reading: Reading) -> Parsing[bool]:
    """Read one call. Returns False if the text is no call."""
    at = reading.at
    if (yield from one_object(reading)):  # who asks for JSON in the system message gets it
        return True
    reading.back_to(at)
    words: list[str] = []
    found = yield from text_until(reading, words.append, ("(", ")", "]", _END))
    name = "".join(words).strip()
    if found != "(" or not name:
        return False
    reading.call(name)
    yield from _VALUES.members(reading, reading.arguments, "{}", ")", "=")
    return True


def _written(schema: Mapping[str, Any], grammar: Grammar) -> str:
    """The grammar of the arguments, in the order of the schema."""
    properties, required = schema.get("properties"), schema.get("required") or ()
    comma = grammar.text((_COMMA,))
    if not isinstance(properties, Mapping) or not properties:
        others = schema.get("additionalProperties", True)
        pair = "" if others is False else grammar.rule(lambda: _pair(_KEY, others, schema, grammar))
        return pair and f"({pair} ({comma} {pair})*)?"
    pairs = [(_pair(key, part, schema, grammar), key not in required) for key, part in properties.items()]
    return with_separators(pairs, comma, grammar)


def _pair(key: str, part: Any, schema: Mapping[str, Any], grammar: Grammar) -> str:
    is_plain = isinstance(key, Regex) or re.fullmatch(_KEY, key)
    whole = with_definitions(part, schema)
    value = grammar.schema(whole)
    of_python = _OF_PYTHON.get(str(whole.get("type")))
    if of_python and whole.keys() <= _WITHOUT_EFFECT:
        value = f"({value} | {of_python})"
    return f"{grammar.text((key if is_plain else json.dumps(key), '='))} {value}"


def _said(calls: Sequence[tuple[str, Any]]) -> str:
    def value(given: Any) -> str:
        is_constant = given is None or isinstance(given, bool)
        return str(given) if is_constant else json.dumps(given, ensure_ascii=False)

    def said(name: str, arguments: Any) -> str:
        if isinstance(arguments, Mapping):
            arguments = ", ".join(f"{key}={value(each)}" for key, each in arguments.items())
        return f"{name}({arguments})"

    return f"{_CALLS}[{', '.join(said(*call) for call in calls)}]{_END}"


LFM2 = Format(
    "lfm2",
    lambda template: any(mark in template for mark in _TAUGHT),
    {_CALLS: functools.partial(listed, end=_END, call=_one)},
    marks=(_END,),
    written=Written(
        before=lambda name: (f"{name}(",),
        after=(")",),
        begin=(_CALLS, "["),
        end=("]", _END),
        between=(_COMMA,),
        trigger=_CALLS,
        arguments=_written,
    ),
    says=_said,
)
