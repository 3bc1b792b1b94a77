"""Messages as ``<|channel|>NAME<|message|>...<|end|>``: gpt-oss. Each of its answers consists of such messages."""

from __future__ import annotations

import functools
import re

from .format import Format, Written
from .reading import Parsing, Reading, addressed, nothing, text_until

_START, _CHANNEL, _CONSTRAIN, _MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_TO_TOOL = "commentary to=functions."
_TO = re.compile(r"\bto=(?:functions\.)?([^\s<]+)")
_THOUGHTS = re.compile(r"<\|channel\|>\s*analysis")


def _message(reading: Reading, mark: str) -> Parsing[None]:
    """Read a message, whose first mark was read already."""
    at = reading.at
    header: list[str] = []
    if not (yield from text_until(reading, header.append, (_MESSAGE,))):
        reading.content(mark + reading.since(at))
        return
    head = mark + "".join(header)
    to = _TO.search(head)
    is_thought = to is None and _THOUGHTS.search(head) is not None
    write = reading.content
    if to is not None:
        reading.call(to[1])
        write = reading.arguments
    elif is_thought:
        reading.begin_thought()
        write = reading.thought
    at = reading.at
    found = yield from text_until(reading, write, (_START, _CHANNEL, *_ENDS))
    if is_thought:
        reading.end_thought()
    if found in (_START, _CHANNEL):  # the beginning of the next message, which is read again as such
        reading.back_to(reading.at - len(found))


HARMONY = Format(
    "harmony",
    lambda template: _CHANNEL in template and _MESSAGE in template,
    {_CHANNEL: _message, _START: _message, **dict.fromkeys(_ENDS, nothing)},
    marks=(_CONSTRAIN, _MESSAGE),
    at_start=functools.partial(addressed, message=_message),
    written=Written(
        lambda name: (_CHANNEL, f"{_TO_TOOL}{name} ", _CONSTRAIN, "json", _MESSAGE),
        between=None,
        trigger=_CHANNEL + _TO_TOOL,
    ),
    thoughts=((_CHANNEL, "analysis", _MESSAGE), (_ENDS[0], _START, "assistant")),
    answer=(_CHANNEL, "final", _MESSAGE),
)
