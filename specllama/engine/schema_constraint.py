"""What a schema allows among the tokens of a model."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import llama_cpp

from specllama import _core
from specllama.grammars.begun_calls import BegunCalls, BegunMatcher
from specllama.grammars.schema_matcher import SchemaVocabulary

from .model import Model


def schema_vocabulary(model: Model) -> SchemaVocabulary:
    """What is known of the tokens of a model, to be made once."""
    return SchemaVocabulary(model.vocab, model.tokenizer, int(llama_cpp.llama_vocab_eos(cast(Any, model.vocab))))


@dataclasses.dataclass(frozen=True)
class Schema:
    """A JSON schema.

    Attributes:
        matched: llguidance's grammar of it, see ``matched_schema``.
    """

    matched: str

    def over(self, model: Model) -> _core.MaskConstraint:
        """What it allows among the tokens of a model, from its beginning.

        Raises:
            ValueError: llguidance cannot follow it.
        """
        return model.once(schema_vocabulary).constraint(self.matched)


@dataclasses.dataclass(frozen=True)
class Begun:
    """Calls of tools, which may come or not: once one was begun, it has to be whole.

    Attributes:
        calls: with what they begin, and their grammars.
    """

    calls: BegunCalls

    def over(self, model: Model) -> _core.MaskConstraint:
        """What they allow among the tokens of a model, from the beginning of an answer."""
        vocabulary = model.once(schema_vocabulary)
        return _core.MaskConstraint(vocabulary.ends, BegunMatcher(vocabulary, self.calls))
