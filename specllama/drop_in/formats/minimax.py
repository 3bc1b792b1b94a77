"""Calls as ``<invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>``: MiniMax M2.

All calls together stand in ``<minimax:tool_call>``.
"""

from __future__ import annotations

from .format import Format, Regex, Written
from .keyed import Keyed
from .reading import Parsing, Reading, closing, text_until

_CALLS, _CALLS_END = "<minimax:tool_call>", "</minimax:tool_call>"
_CALL, _CALL_END = '<invoke name="', "</invoke>"
_PARAMETERS = Keyed('<parameter name="', '">', "</parameter>")


def _called(reading: Reading, mark: str) -> Parsing[None]:
    at = reading.at
    while (yield from closing(reading, _CALL)):
        name: list[str] = []
        if not (yield from text_until(reading, name.append, ('">',))) or not "".join(name).strip():
            reading.content(mark + reading.since(at))
            return
        reading.call("".join(name).strip())
        yield from _PARAMETERS.read(reading, "".join(name).strip(), (_CALL_END,))
        mark, at = "", reading.at
    if mark:
        reading.content(mark)
    yield from closing(reading, _CALLS_END)


MINIMAX = Format(
    "minimax",
    lambda template: _CALLS in template,
    {_CALLS: _called},
    marks=(_CALLS_END,),
    written=Written(
        before=lambda name: (f'{_CALL}{name}">', Regex(r"\n?")),
        after=(f"{_CALL_END}\n",),
        begin=(_CALLS, "\n"),
        end=(_CALLS_END,),
        trigger=_CALLS,
        arguments=_PARAMETERS.written,
    ),
)
