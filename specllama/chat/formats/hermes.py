"""Calls as ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``: Hermes, Qwen 2.5 and 3, and many others.

Small models often write other marks around the object, or none. Such an object is a call if it has the name of a tool.
"""

from __future__ import annotations

import re

from .format import Format, Written
from .json_calls import begun_object, call_object
from .reading import Parsing, Reading, closing

_BEGIN, _END = "<tool_call>", "</tool_call>"
_TAUGHT = re.compile(r"name and arguments within <tool_call>|<tool_call>(?:\\n|\s)*\{\{?\s*\\?['\"](?:name|arguments)")
_OTHERS = {"```json": "```", "<tools>": "</tools>"}


def _called(reading: Reading, mark: str) -> Parsing[None]:
    text = yield from call_object(reading)
    if text is not None:
        reading.content(mark + text)
        return
    yield from closing(reading, _END)


def _otherwise(reading: Reading, mark: str) -> Parsing[None]:
    text = yield from call_object(reading, known_only=True)
    if text is not None:
        reading.content(mark + text)
        return
    while not mark or not (yield from closing(reading, _OTHERS[mark])):
        at = reading.at
        if (yield from call_object(reading, known_only=True)) is not None:
            reading.back_to(at)
            return


def _at_start(reading: Reading) -> Parsing[None]:
    yield from _otherwise(reading, "")


HERMES = Format(
    "hermes",
    lambda template: _TAUGHT.search(template) is not None,  # the marks alone do not tell: other forms have the same
    {_BEGIN: _called, **dict.fromkeys(_OTHERS, _otherwise)},
    marks=(_END,),
    at_start=_at_start,
    written=Written(
        before=lambda name: (_BEGIN, f"\n{begun_object(name)}"),
        after=("}\n", _END),
        between=("\n",),
        trigger=_BEGIN,
        bare=begun_object,
        bare_behind=("```json\n",),
    ),
)
