"""Calls as ``<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>``: GLM 4.5 and later."""

from __future__ import annotations

from .format import Format, Regex, Written
from .keyed import Keyed
from .reading import Parsing, Reading, text_until

_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_PARAMETERS = Keyed("<arg_key>", "</arg_key>", "</arg_value>", opening="<arg_value>")


def _called(reading: Reading, mark: str) -> Parsing[None]:
    at = reading.at
    words: list[str] = []
    found = yield from text_until(reading, words.append, (_PARAMETERS.before, _CALL_END))
    name = "".join(words).strip()
    if not found or not name or "\n" in name:
        reading.content(mark + reading.since(at))
        return
    reading.back_to(reading.at - len(found))
    reading.call(name)
    yield from _PARAMETERS.read(reading, name, (_CALL_END,))


GLM = Format(
    "glm",
    lambda template: _CALL in template and _PARAMETERS.before in template,
    {_CALL: _called},
    marks=(_CALL_END,),
    written=Written(  # GLM 4.6 writes the line breaks, and 4.7 does not
        before=lambda name: (_CALL, name, Regex(r"\n{0,2}")),
        after=(_CALL_END,),
        between=(Regex(r"\n?"),),
        trigger=_CALL,
        arguments=_PARAMETERS.written,
    ),
)
