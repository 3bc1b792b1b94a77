"""What a schema allows among the tokens of an open Llama."""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from specllama import _core
from specllama.backend import libllama
from specllama.backend.base_class import BaseLlama
from specllama.grammars.schema_matcher import SchemaGrammar, SchemaMatcher
from specllama.grammars.schema_pieces import SchemaPieces

from .per_model import PerModel

_EVERY_BYTE = frozenset(bytes([byte]) for byte in range(256))
_MOST_MATCHERS = 8  # of the last schemas: making one takes longer than copying it


@dataclasses.dataclass
class SchemaVocabulary:
    """A model's tokens as llguidance knows them. Made once, because it takes a while."""

    tokenizer: Any
    ends: list[int]
    """The tokens that end a text."""
    seconds: float
    """How long it took to make."""
    matchers: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Those of the last schemas, at their beginnings."""
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    """Of the matchers."""

    def matcher(self, grammar: str) -> Any:
        """A new one for a schema that llguidance has parsed, at its beginning."""
        from llguidance import LLMatcher

        with self.lock:
            first = self.matchers.pop(grammar, None)
            if first is None:
                first = LLMatcher(self.tokenizer, grammar, log_level=0)
            self.matchers[grammar] = first
            if len(self.matchers) > _MOST_MATCHERS:
                del self.matchers[next(iter(self.matchers))]
            return first.deep_copy()


def schema_matcher(llama: BaseLlama, grammar: SchemaGrammar) -> SchemaMatcher:
    """Follows a schema over the tokens of an open Llama, from its beginning.

    Raises:
        ValueError: llguidance cannot follow it.
    """
    vocabulary = schema_vocabulary(llama)
    return SchemaMatcher(vocabulary.matcher(grammar.matched), frozenset(vocabulary.ends))


def schema_constraint(llama: BaseLlama, grammar: SchemaGrammar) -> _core.MaskConstraint:
    """The same for the native loop."""
    return _core.MaskConstraint(schema_vocabulary(llama).ends, schema_matcher(llama, grammar))


class SchemaProcessor:
    """The same as a logits processor, for llama.cpp's own samplers. For one generation."""

    def __init__(self, llama: BaseLlama, grammar: SchemaGrammar) -> None:
        self._matcher = schema_matcher(llama, grammar)
        self._ends = schema_vocabulary(llama).ends
        self._prompt_size = -1

    def __call__(self, input_ids: npt.NDArray[np.intc], scores: npt.NDArray[np.single]) -> npt.NDArray[np.single]:
        """The scores [n_vocab], -inf for what may not come next."""
        if self._prompt_size < 0:
            self._prompt_size = len(input_ids)
        mask, may_end, _ = self._matcher(input_ids[self._prompt_size :])
        allowed = np.zeros(len(scores), dtype=bool)
        bits = np.unpackbits(np.frombuffer(mask, dtype=np.uint8), bitorder="little")[: len(scores)]
        allowed[: len(bits)] = bits
        allowed[self._ends] = may_end
        return np.where(allowed, scores, np.single(-np.inf))


def _made(llama: BaseLlama) -> SchemaVocabulary:
    start = time.perf_counter()
    vocab = libllama.vocab_of(llama._model)
    pieces, ends = _core.token_pieces(libllama.API, vocab)
    if not ends:  # llguidance needs one
        pieces.append(b"\xff<end>")
    end = llama.token_eos()
    end = end if end in ends else ends[0] if ends else len(pieces) - 1
    return SchemaVocabulary(_tokenizer(vocab, pieces, end), ends, time.perf_counter() - start)


def _tokenizer(vocab: int, pieces: list[bytes], end: int) -> Any:
    from llguidance import LLTokenizer, TokenizerWrapper

    if not _EVERY_BYTE.issubset(pieces):  # llama_tokenize would end the process at a byte that no token has
        return LLTokenizer(TokenizerWrapper(SchemaPieces(pieces, end)))
    return LLTokenizer.from_llamacpp(
        tokens=pieces, vocab_ptr=vocab, tokenize_fptr=libllama.address_of("llama_tokenize"), eos_token=end
    )


schema_vocabulary = PerModel(_made)
"""What is known of the tokens of an open Llama."""
