"""Writes grammars for llguidance: of calls of tools, and of answers without calls.

Calls are written in the form that the model was trained to write. The grammar of calls is for a whole answer, or for
the rest of a call that the model has begun.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from .format import Pieces, Regex, Written

_TEXT = r"TEXT: /(.|\n)*/"
_BLANKS = r"/[ \n]{0,4}/"
_BLANK = r"/[ \n]?/"


def forced_calls(
    written: Written,
    schemas: Mapping[str, Any],
    token: Callable[[str], int | None],
    *,
    several: bool,
    behind: Pieces | None = None,
    is_loose: bool = False,
) -> str:
    """The grammar of calls, for llguidance.

    Args:
        written: the form of the calls.
        schemas: for each tool that may be called, its name and llguidance's schema of its parameters.
        token: gives the special token for a text; None if the model has no such token.
        several: whether there may be more than one call.
        behind: the rest of the mark that ends a thought before the calls; None if no thought comes before them.
        is_loose: whether the blanks around the pieces may differ from the form's.

    Returns:
        JSON of llguidance's grammars.
    """
    grammar = _Grammar(token, is_loose)
    text, rules = grammar.text, grammar.rules
    arguments = written.arguments or (lambda schema, grammar: grammar.schema(schema))
    rules.append(f"call: {' | '.join(f'call_{number}' for number in range(len(schemas)))}")
    for number, (name, schema) in enumerate(schemas.items()):
        call = f"{text(written.before(name))} {arguments(schema, grammar)} {text(written.after)}"
        rules.append(f"call_{number}: {call}")
    rules.append(f"calls: {text(written.begin)} call {_more(written, text) if several else ''} {text(written.end)}")
    lark = "\n".join([f"start: {_behind(behind, grammar)} calls", *rules])
    return json.dumps({"grammars": [{"name": "calls", "lark_grammar": lark}, *grammar.parts]})


def answer(matched: str, opening: Pieces, token: Callable[[str], int | None], *, behind: Pieces | None = None) -> str:
    """The grammar of an answer that is no call, for llguidance.

    Args:
        matched: llguidance's grammar of the answer, as JSON.
        opening: the text that begins such an answer.
        token: gives the special token for a text; None if the model has no such token.
        behind: as for `forced_calls`.

    Returns:
        JSON of llguidance's grammars.
    """
    if behind is None and not opening:
        return matched
    grammar, parts = _Grammar(token, False), json.loads(matched)["grammars"]
    lark = f"start: {_behind(behind, grammar)} {grammar.text(opening)} @{parts[0]['name']}"
    return json.dumps({"grammars": [{"name": "answer", "lark_grammar": lark}, *parts]})


def begun_thought(begin: Pieces, token: Callable[[str], int | None]) -> str:
    """The grammar of a text that begins with the mark of a thought, for llguidance."""
    lark = f"start: {_Grammar(token, False).text(begin)} TEXT\n{_TEXT}"
    return json.dumps({"grammars": [{"name": "thought", "lark_grammar": lark}]})


def _behind(mark: Pieces | None, grammar: _Grammar) -> str:
    """The grammar of the rest of the mark that ends a thought, and of blanks after it; empty if `mark` is None."""
    return "" if mark is None else f"{grammar.text(mark)} {_BLANKS}"


class _Grammar:
    """Implements ``format.Grammar``."""

    def __init__(self, token: Callable[[str], int | None], is_loose: bool) -> None:
        self._token = token
        self._is_loose = is_loose
        self.rules: list[str] = []
        self.parts: list[dict[str, Any]] = []
        self._marks: list[str] = []  # the marks for which `text_until` has made rules, by the rules' numbers
        self._named: dict[Hashable, str] = {}
        self._num_named = 0

    def text(self, pieces: Pieces) -> str:
        return " ".join(self._piece(piece) for piece in pieces if piece)

    def text_until(self, mark: str) -> str:
        if not self._marks:
            self.rules.append(_TEXT)
        if mark not in self._marks:
            known = self._token(mark)
            end = json.dumps(mark) if known is None else f"<[{known}]>"
            self.rules.append(f"text_{len(self._marks)}{'[lazy]' if known is None else ''}: TEXT {end}")
            self._marks.append(mark)
        return f"text_{self._marks.index(mark)}"

    def schema(self, schema: Any) -> str:
        name = f"schema_{len(self.parts)}"
        self.parts.append({"name": name, "json_schema": schema})
        return f"@{name}"

    def rule(self, write: Callable[[], str], key: Hashable = None) -> str:
        if key is not None and key in self._named:
            return self._named[key]
        name = f"rule_{self._num_named}"
        self._num_named += 1
        if key is not None:
            self._named[key] = name
        self.rules.append(f"{name}: {write()}")
        return name

    def _piece(self, piece: str) -> str:
        if isinstance(piece, Regex):
            return f"/{piece}/"
        known = self._token(piece)
        return _literal(piece, self._is_loose) if known is None else f"<[{known}]>"


def behind_trigger(
    written: Written, schemas: Mapping[str, Any], token: Callable[[str], int | None], *, several: bool
) -> str:
    """The grammar of the text after the trigger of the first call.

    Args:
        written: the form of the calls, with a trigger.
        schemas: for each tool that may be called, its name and llguidance's schema of its parameters.
        token: gives the special token for a text; None if the model has no such token.
        several: whether there may be more than one call.

    Returns:
        JSON of llguidance's grammars.
    """
    if written.begin:
        end = written.end if several else ()  # a single call ends the answer, so no end mark is needed
        rest = dataclasses.replace(written, begin=_without(written.begin, written.trigger), end=end)
    else:  # each call has a trigger of its own
        rest = dataclasses.replace(written, before=lambda name: _without(written.before(name), written.trigger))
    return forced_calls(rest, schemas, token, several=several and bool(written.begin), is_loose=True)


def _without(pieces: Pieces, trigger: str) -> Pieces:
    """The pieces without `trigger`, with which their joined text begins."""
    left = []
    for piece in pieces:
        covered, trigger = min(len(piece), len(trigger)), trigger[len(piece) :]
        left.append(piece[covered:] if covered else piece)
    return tuple(filter(None, left))


def _literal(piece: str, is_loose: bool) -> str:
    if not is_loose:
        return json.dumps(piece)
    parts = re.fullmatch(r"(\s*)(.*?)(\s*)", piece, re.S)
    assert parts is not None  # for mypy: every text matches
    before, words, behind = parts.groups()
    return " ".join([*([_BLANK] if before else []), json.dumps(words), *([_BLANK] if behind and words else [])])


def _more(written: Written, text: Callable[[Pieces], str]) -> str:
    return "" if written.between is None else f"({text(written.between)} call)*"
