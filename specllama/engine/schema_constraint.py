"""What a schema allows among the tokens of a model."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import llama_cpp

from specllama import _core
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
