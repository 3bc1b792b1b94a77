"""Constraints of schemas and of calls of tools, over the tokens of a model."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import llama_cpp

from specllama import _core
from specllama.grammars.begun_calls import BegunCalls, BegunMatcher
from specllama.grammars.schema_matcher import SchemaVocabulary

from .model import Model


def schema_vocabulary(model: Model) -> SchemaVocabulary:
    """A model's vocabulary in the form that schemas need. It takes a while: ``model.once(schema_vocabulary)``."""
    return SchemaVocabulary(model.vocab, model.tokenizer, int(llama_cpp.llama_vocab_eos(cast(Any, model.vocab))))


@dataclasses.dataclass(frozen=True)
class Schema:
    """A JSON schema.

    Attributes:
        matched: llguidance's grammar of the schema, as ``matched_schema`` makes it.
    """

    matched: str

    def over(self, model: Model) -> _core.MaskConstraint:
        """The constraint over the tokens of a model, at the beginning of the text.

        Raises:
            ValueError: llguidance cannot follow the schema.
        """
        return model.once(schema_vocabulary).constraint(self.matched)


@dataclasses.dataclass(frozen=True)
class Begun:
    """Optional calls of tools. Once a call was begun, it has to be completed.

    Attributes:
        calls: the beginnings of the calls, and their grammars.
    """

    calls: BegunCalls

    def over(self, model: Model) -> _core.MaskConstraint:
        """The constraint over the tokens of a model, at the beginning of an answer."""
        vocabulary = model.once(schema_vocabulary)
        return _core.MaskConstraint(vocabulary.ends, BegunMatcher(vocabulary, self.calls))
