"""``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``: Hermes, Qwen 2.5 and 3, and many others."""

from __future__ import annotations

import json
import re

from .format import Format, Written
from .json_calls import call_object
from .reading import Parsing, Reading, closing

_BEGIN, _END = "<tool_call>", "</tool_call>"
_TAUGHT = re.compile(r"name and arguments within <tool_call>|<tool_call>(?:\\n|\s)*\{\{?\s*\\?['\"](?:name|arguments)")


def _called(reading: Reading, mark: str) -> Parsing[None]:
    text = yield from call_object(reading)
    if text is not None:
        reading.content(mark + text)
        return
    yield from closing(reading, _END)


HERMES = Format(
    "hermes",
    lambda template: _TAUGHT.search(template) is not None,  # others have something else between the same marks
    {_BEGIN: _called},
    marks=(_END,),
    written=Written(
        before=lambda name: (_BEGIN, f'\n{{"name": {json.dumps(name)}, "arguments": '),
        after=("}\n", _END),
        between=("\n",),
    ),
)
