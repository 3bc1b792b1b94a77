"""Extends the grammar of an answer to the whole text: with a thought before, the mark that opens an answer, and calls.

All grammars of chats come here: those of schemas and formats, those that the user has written, and those of calls.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from llama_cpp.llama_grammar import JSON_GBNF, LlamaGrammar

from specllama.engine.schema_constraint import Begun, Behind, OneOf
from specllama.engine.vocabulary import Gbnf
from specllama.grammars.behind_thought import Thought
from specllama.grammars.gbnf_behind import gbnf_behind
from specllama.grammars.schema import SchemaGrammar, matched_schema

from .formats.forced import answer, begun_thought
from .formats.format import Pieces

_ANY_OBJECT = '{"type": "object"}'
Token = Callable[[str], int | None]
"""Gives the special token for a text; None if the model has no such token."""


@dataclasses.dataclass(frozen=True)
class Calls:
    """Calls of tools that may come in place of an answer.

    Attributes:
        grammar: makes llguidance's grammar of the calls, from the argument ``behind`` of `forced_calls`.
        beginnings: the texts with which the calls begin.
    """

    grammar: Callable[[Pieces | None], str]
    beginnings: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Prescribed:
    """The parts that the text of a chat's answer has besides the answer's own grammar.

    Attributes:
        opening: the text that begins an answer without calls.
        calls: calls that may come in place of an answer; None if no calls can come.
        must_call: whether the answer must consist of these calls.
        thoughts: the marks around a thought before the answer; None if no thought can come.
    """

    opening: Pieces
    calls: Calls | None
    must_call: bool
    thoughts: tuple[Pieces, Pieces] | None

    def behind(self, grammar: Any, token: Token, *, is_thinking: bool) -> Any:
        """The grammar or constraint of a whole text.

        Args:
            grammar: the grammar of the answer, a LlamaGrammar.
            token: gives the special token for a text, as `Token` says.
            is_thinking: whether the prompt has begun a thought.
        """
        text = grammar._grammar if isinstance(grammar, LlamaGrammar) else None
        is_whole = self.thoughts is None and not self.opening and self.calls is None
        if is_whole or not isinstance(text, str) or not text:  # an empty grammar allows everything
            return grammar
        if self.calls is not None and text == JSON_GBNF:  # llama_cpp's grammar for a response_format of json_object
            grammar = SchemaGrammar(JSON_GBNF, matched_schema(_ANY_OBJECT))
        if not isinstance(grammar, SchemaGrammar):
            return self._gbnf(grammar, is_thinking)
        if self.thoughts is None:
            return OneOf(self._ways(grammar, token, None))
        begin, (end, *rest) = self.thoughts
        thought = Thought("".join(begin), end, is_thinking)
        at_once = OneOf((begun_thought(begin, token), *self._ways(grammar, token, None)))
        return Behind(thought, at_once, OneOf(self._ways(grammar, token, tuple(rest))))

    def _ways(self, grammar: SchemaGrammar, token: Token, behind: Pieces | None) -> tuple[str, ...]:
        calls = () if self.calls is None else (self.calls.grammar(behind),)
        return calls if self.must_call else (answer(grammar.matched, self.opening, token, behind=behind), *calls)

    def _gbnf(self, grammar: LlamaGrammar, is_thinking: bool) -> Gbnf:
        begin, (end, *rest) = self.thoughts or ((), ("",))
        text, root = gbnf_behind(
            grammar._grammar,
            grammar._root,
            thought=None if self.thoughts is None else Thought("".join(begin), end, is_thinking),
            between="".join(rest),
            opening="".join(self.opening),
            others=() if self.calls is None else self.calls.beginnings,
        )
        return Gbnf(text, root)


def free_behind(calls: Begun, thoughts: tuple[Pieces, Pieces] | None, *, is_thinking: bool) -> Begun | Behind:
    """The constraint of a text that is free until a call begins. Nothing in a thought begins a call."""
    if thoughts is None:
        return calls
    begin, end = map("".join, thoughts)
    return Behind(Thought(begin, end, is_thinking), calls, calls)
