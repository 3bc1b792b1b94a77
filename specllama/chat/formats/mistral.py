"""Calls after ``[TOOL_CALLS]``: Mistral.

A list of JSON objects follows the mark. In templates since 2025, the name of a tool and its arguments follow instead,
and each call has its own mark.
"""

from __future__ import annotations

from .format import Format, Written
from .json_calls import begun_object, json_value, one_object
from .reading import Parsing, Reading, closing, listed, spaces, text_until

_CALLS, _ID, _ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


def _called(reading: Reading, mark: str) -> Parsing[None]:
    at = reading.at
    is_list = yield from closing(reading, "[")
    reading.back_to(at)
    yield from (listed(reading, mark, "", one_object) if is_list else _named(reading, mark))


def _named(reading: Reading, mark: str) -> Parsing[None]:
    at = reading.at
    name: list[str] = []
    number: list[str] = []
    found = yield from text_until(reading, name.append, (_ARGUMENTS, _ID, "{"))
    if found == _ID:
        found = yield from text_until(reading, number.append, (_ARGUMENTS, "{"))
    called = "".join(name).strip()
    if not found or not called:
        reading.content(mark + reading.since(at))
        return
    if found == "{":
        reading.back_to(reading.at - 1)
    reading.call(called, "".join(number).strip() or None)
    yield from spaces(reading)
    yield from json_value(reading, reading.arguments)


MISTRAL = Format(
    "mistral",
    lambda template: _CALLS in template and _ARGUMENTS in template,
    {_CALLS: _called},
    marks=(_ID, _ARGUMENTS),
    written=Written(lambda name: (_CALLS, name, _ARGUMENTS), trigger=_CALLS),
)
MISTRAL_LIST = Format(
    "mistral-list",
    lambda template: _CALLS in template,
    {_CALLS: _called},
    written=Written(
        lambda name: (begun_object(name),), ("}",), begin=(_CALLS, "["), end=("]",), between=(", ",), trigger=_CALLS
    ),
)
