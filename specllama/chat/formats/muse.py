"""Messages as `` to=NAME<|message|>...``, with calls in ``<atem:function_calls>``: Muse Glimmer."""

from __future__ import annotations

import functools

from .format import Format, Written
from .keyed import Keyed
from .reading import Parsing, Reading, addressed, nothing, section, text_until

_START, _MESSAGE, _NEXT, _END = "<|start|>", "<|message|>", "<|eom|>", "<|eot|>"
_SELF, _USER = " to=self", " to=user"
_CALLS, _CALLS_END = "<atem:function_calls>", "</atem:function_calls>"
_CALL, _CALL_END = '<atem:invoke name="', "</atem:invoke>"
_PARAMETERS = Keyed('<atem:parameter name="', '">', "</atem:parameter>")
_one = functools.partial(_PARAMETERS.call, end=_CALL_END)
_ANOTHER = (_NEXT, _START, "assistant")  # what ends a message before another one of the same turn


def _message(reading: Reading, mark: str) -> Parsing[None]:
    """Read the head of a message, and the whole message if it is a thought."""
    at = reading.at
    head: list[str] = []
    if not (yield from text_until(reading, head.append, (_MESSAGE,))):
        reading.content(mark + reading.since(at))
    elif _SELF in "".join(head):
        reading.begin_thought()
        yield from text_until(reading, reading.thought, (_NEXT, _END))
        reading.end_thought()


MUSE = Format(
    "muse",
    lambda template: _CALLS in template,
    {
        _START: _message,
        _CALLS: functools.partial(section, begin=_CALL, end=_CALLS_END, call=_one),
        **dict.fromkeys((_MESSAGE, _NEXT, _END), nothing),
    },
    marks=(_CALLS_END,),
    at_start=functools.partial(addressed, message=_message),
    written=Written(
        before=lambda name: (f" to={name}", _MESSAGE, _CALLS, f'\n{_CALL}{name}">\n'),
        after=(f"{_CALL_END}\n", _CALLS_END),
        between=_ANOTHER,
        arguments=_PARAMETERS.written,
    ),
    thoughts=((_SELF, _MESSAGE), _ANOTHER),
    answer=(_USER, _MESSAGE),
)
