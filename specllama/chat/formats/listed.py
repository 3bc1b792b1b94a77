"""Calls as a list of JSON objects between two marks: Nemotron Nano 2, Granite 3, Apriel, and Cohere's models."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable

from .format import Format, Pieces, Regex, Written
from .json_calls import begun_object, one_object
from .reading import listed

_BLANKS = Regex(r"[ \n]{0,8}")


def _plain(name: str) -> Pieces:
    return (begun_object(name),)


def _numbered(name: str) -> Pieces:
    return ('{"tool_call_id": "', Regex("[0-9]{1,2}"), f'", "tool_name": {json.dumps(name)}, "parameters": ')


def _calls(name: str, begin: str, end: str, taught: str, before: Callable[[str], Pieces] = _plain) -> Format:
    return Format(
        name,
        lambda template: taught in template,
        {begin: functools.partial(listed, end=end, call=one_object)},
        marks=(end,) if end else (),
        written=Written(
            before,
            ("}",),
            begin=(begin, "[", _BLANKS),
            end=(_BLANKS, "]", end),
            between=(",", _BLANKS),
            trigger=begin,
        ),
    )


NEMOTRON2 = _calls("nemotron2", "<TOOLCALL>", "</TOOLCALL>", "<TOOLCALL>[")
GRANITE3 = _calls("granite3", "<|tool_call|>", "", "<|tool_call|> followed by a JSON list")
APRIEL = _calls("apriel", "<tool_calls>", "</tool_calls>", "<tool_calls>[")
COHERE = _calls("cohere", "<|START_ACTION|>", "<|END_ACTION|>", "<|START_ACTION|>", _numbered)
