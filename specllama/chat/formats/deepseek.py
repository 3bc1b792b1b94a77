"""Calls between ``<｜tool▁calls▁begin｜>`` and ``<｜tool▁calls▁end｜>``: DeepSeek V3, R1 and V3.1."""

from __future__ import annotations

import functools

from .format import Format, Written
from .json_calls import json_value
from .reading import Parsing, Reading, closing, section, spaces, text_until

_CALLS, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _SEPARATOR, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_KIND = "function"
_FENCE, _FENCE_END = "```json", "```"


def _one(reading: Reading) -> Parsing[bool]:
    """Read one call. Returns False if the text is no call."""
    before: list[str] = []
    if not (yield from text_until(reading, before.append, (_SEPARATOR,))):
        return False
    name = "".join(before).strip()
    is_fenced = name == _KIND
    if is_fenced:  # models before V3.1 write the arguments in a Markdown fence
        before.clear()
        if not (yield from text_until(reading, before.append, (_FENCE,))):
            return False
        name = "".join(before).strip()
    if not name:
        return False
    reading.call(name)
    yield from spaces(reading)
    yield from json_value(reading, reading.arguments)
    if is_fenced:
        yield from closing(reading, _FENCE_END)
    yield from closing(reading, _CALL_END)
    return True


_OPENINGS = {_CALLS: functools.partial(section, begin=_CALL, end=_CALLS_END, call=_one)}
DEEPSEEK = Format(
    "deepseek",
    lambda template: _CALLS in template and _FENCE not in template,
    _OPENINGS,
    marks=(_CALLS_END, _CALL, _SEPARATOR, _CALL_END),
    written=Written(lambda name: (_CALL, name, _SEPARATOR), (_CALL_END,), (_CALLS,), (_CALLS_END,), trigger=_CALLS),
)
DEEPSEEK_FENCED = Format(
    "deepseek-fenced",
    lambda template: _CALLS in template,
    _OPENINGS,
    marks=(_CALLS_END, _CALL, _SEPARATOR, _CALL_END),
    written=Written(
        lambda name: (_CALL, _KIND, _SEPARATOR, f"{name}\n{_FENCE}\n"),
        (f"\n{_FENCE_END}", _CALL_END),
        begin=(_CALLS,),
        end=(_CALLS_END,),
        between=("\n",),
        trigger=_CALLS,
    ),
)
