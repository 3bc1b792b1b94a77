"""Calls as ``<invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>``: MiniMax M2.

All calls together stand in ``<minimax:tool_call>``.
"""

from __future__ import annotations

import functools

from .format import Format, Regex, Written
from .keyed import Keyed
from .reading import section

_CALLS, _CALLS_END = "<minimax:tool_call>", "</minimax:tool_call>"
_CALL, _CALL_END = '<invoke name="', "</invoke>"
_PARAMETERS = Keyed('<parameter name="', '">', "</parameter>")
_one = functools.partial(_PARAMETERS.call, end=_CALL_END)

MINIMAX = Format(
    "minimax",
    lambda template: _CALLS in template,
    {_CALLS: functools.partial(section, begin=_CALL, end=_CALLS_END, call=_one)},
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
