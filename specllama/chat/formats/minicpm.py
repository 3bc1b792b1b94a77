"""Calls as ``<function name="NAME"><param name="KEY">VALUE</param></function>``: MiniCPM5."""

from __future__ import annotations

from .format import Format, Written
from .keyed import Keyed
from .reading import Parsing, Reading

_CALL, _CALL_END = '<function name="', "</function>"
_PARAMETERS = Keyed('<param name="', '">', "</param>", cdata=True)


def _called(reading: Reading, mark: str) -> Parsing[None]:
    at = reading.at
    if not (yield from _PARAMETERS.call(reading, _CALL_END)):
        reading.content(mark + reading.since(at))


MINICPM = Format(
    "minicpm",
    lambda template: _CALL in template and _PARAMETERS.before in template,
    {_CALL: _called},
    marks=(_CALL_END,),
    written=Written(
        before=lambda name: (f'{_CALL}{name}">',),
        after=(_CALL_END,),
        between=("\n",),
        trigger=_CALL,
        arguments=_PARAMETERS.written,
    ),
)
