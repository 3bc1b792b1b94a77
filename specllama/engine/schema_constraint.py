"""What a schema allows among the tokens of an open Llama."""

from __future__ import annotations

from specllama.backend import libllama
from specllama.grammars.schema_matcher import SchemaVocabulary

from .per_model import PerModel

schema_vocabulary = PerModel(lambda llama: SchemaVocabulary(libllama.vocab_of(llama._model), llama.token_eos()))
"""What is known of the tokens of an open Llama."""
