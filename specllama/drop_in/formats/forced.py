"""The grammar of an answer that must be a call, in the form that the model was trained to write."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from .format import Pieces, Written

_TEXT = r"TEXT: /(.|\n)*/"


def forced_calls(
    written: Written,
    schemas: Mapping[str, Any],
    token: Callable[[str], int | None],
    *,
    several: bool,
    thoughts: tuple[Pieces, Pieces] | None = None,
    is_thinking: bool = False,
) -> str:
    """Llguidance's grammar of calls.

    Args:
        written: how they are written.
        schemas: llguidance's schema of the parameters of each tool that may be called, by its name.
        token: gives the token that a text is, if the model has one that no other text is written with.
        several: whether there may be more than one.
        thoughts: the marks of a thought that may stand before them.
        is_thinking: it has been begun.
    """

    def text(pieces: Pieces) -> str:
        ids = [(piece, token(piece)) for piece in pieces if piece]
        return " ".join(json.dumps(piece) if known is None else f"<[{known}]>" for piece, known in ids)

    rules = [f"call: {' | '.join(f'call_{number}' for number in range(len(schemas)))}"]
    for number, name in enumerate(schemas):
        rules.append(f"call_{number}: {text(written.before(name))} @schema_{number} {text(written.after)}")
    rules.append(f"calls: {text(written.begin)} call {_more(written, text) if several else ''} {text(written.end)}")
    start = "calls"
    if thoughts is not None:
        begin, (first, *rest) = thoughts
        known = token(first)
        rules.append(_TEXT)
        if known is None:
            rules.append(f"thought[lazy]: TEXT {json.dumps(first)}")
        else:
            rules.append(f"thought: TEXT <[{known}]>")
        tail = " ".join(part for part in (text(tuple(rest)), r"/[ \n]{0,4}/") if part)
        start = f"thought {tail} calls" if is_thinking else f"({text(begin)} thought {tail})? calls"
    parts = [{"name": f"schema_{number}", "json_schema": schema} for number, schema in enumerate(schemas.values())]
    lark = "\n".join([f"start: {start}", *rules])
    return json.dumps({"grammars": [{"name": "calls", "lark_grammar": lark}, *parts]})


def _more(written: Written, text: Callable[[Pieces], str]) -> str:
    return "" if written.between is None else f"({text(written.between)} call)*"
