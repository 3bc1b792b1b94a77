"""Grammars of llama_cpp's as constraints of a text."""

from __future__ import annotations

from typing import Any

from llama_cpp.llama_grammar import LlamaGrammar

from specllama.engine.request import Constraint
from specllama.engine.schema_constraint import Schema
from specllama.engine.vocabulary import Gbnf
from specllama.grammars.schema import SchemaGrammar


def constraint_of(grammar: Any) -> Constraint | None:
    """What a text must be.

    Raises:
        TypeError: neither None nor a LlamaGrammar.
    """
    if grammar is None:
        return None
    if isinstance(grammar, SchemaGrammar):
        return Schema(grammar.matched)
    if not isinstance(grammar, LlamaGrammar):
        raise TypeError(f"grammar={grammar!r} must be a llama_cpp.LlamaGrammar: make one by LlamaGrammar.from_string")
    return Gbnf(grammar._grammar, grammar._root)
