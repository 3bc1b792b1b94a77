"""Calls as ``<function=NAME><parameter=KEY>VALUE</parameter></function>``: Qwen3-Coder and Qwen3.5.

Each call stands in ``<tool_call>``.
"""

from __future__ import annotations

from .format import Format, Written
from .keyed import Keyed
from .reading import Parsing, Reading, closing, text_until

_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETERS = Keyed("<parameter=", ">", "</parameter>", breaks=True)


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
    yield from _PARAMETERS.read(reading, "".join(name).strip(), (_FUNCTION_END, _CALL_END))
    yield from closing(reading, _CALL_END)


QWEN_XML = Format(
    "qwen-xml",
    lambda template: all(mark in template for mark in (_CALL, _FUNCTION, _PARAMETERS.before)),
    {_CALL: _called, _FUNCTION: _called},
    marks=(_CALL_END,),
    written=Written(
        before=lambda name: (_CALL, f"\n{_FUNCTION}{name}>\n"),
        after=(f"{_FUNCTION_END}\n", _CALL_END),
        between=("\n",),
        trigger=_CALL,
        arguments=_PARAMETERS.written,
    ),
)
