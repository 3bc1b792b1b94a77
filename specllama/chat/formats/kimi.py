"""Calls between ``<|tool_calls_section_begin|>`` and ``..._end|>``, each named ``functions.NAME:NUMBER``: Kimi K2."""

from __future__ import annotations

import functools

from .format import Format, Regex, Written
from .json_calls import json_value
from .reading import Parsing, Reading, closing, section, spaces, text_until

_CALLS, _CALLS_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _ARGUMENTS, _CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_KIND = "functions."


def _one(reading: Reading) -> Parsing[bool]:
    """Read one call. Returns False if the text is no call."""
    words: list[str] = []
    found = yield from text_until(reading, words.append, (_ARGUMENTS,))
    name = "".join(words).strip().removeprefix(_KIND).rpartition(":")[0] or "".join(words).strip()
    if not found or not name:
        return False
    reading.call(name)
    yield from spaces(reading)
    yield from json_value(reading, reading.arguments)
    yield from closing(reading, _CALL_END)
    return True


KIMI = Format(
    "kimi",
    lambda template: _CALLS in template,
    {_CALLS: functools.partial(section, begin=_CALL, end=_CALLS_END, call=_one)},
    marks=(_CALLS_END, _CALL, _ARGUMENTS, _CALL_END),
    written=Written(
        before=lambda name: (_CALL, f"{_KIND}{name}:", Regex("[0-9]{1,2}"), _ARGUMENTS),
        after=(_CALL_END,),
        begin=(_CALLS,),
        end=(_CALLS_END,),
        trigger=_CALLS,
    ),
)
