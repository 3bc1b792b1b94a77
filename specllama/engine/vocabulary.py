"""What the native side makes of a model's vocabulary: grammars over its tokens, and texts in its tokens."""

from __future__ import annotations

import dataclasses
import re
import weakref

import llama_cpp
from llama_cpp.llama_grammar import LlamaGrammar

from specllama import _core
from specllama.backend import libllama
from specllama.backend.base_class import BaseLlama
from specllama.grammars.gbnf import check_gbnf

# Whether llama.cpp survives loops without text (its pull request 18604) and great repetitions. This release does for
# sure, some before it may.
_RECENT = tuple(map(int, re.findall(r"\d+", llama_cpp.__version__)[:3])) >= (0, 3, 26)


@dataclasses.dataclass
class _Known:
    """What has been made of the vocabulary of one Llama, which takes a while."""

    first_bytes: _core.FirstBytes | None = None
    token_texts: _core.TokenTexts | None = None
    breakers: tuple[tuple[str, ...], _core.SequenceBreakers] | None = None
    """Those of the last call, and the texts that they were made of."""


_KNOWN: weakref.WeakKeyDictionary[BaseLlama, _Known] = weakref.WeakKeyDictionary()


def grammar_of(llama: BaseLlama, grammar: LlamaGrammar) -> _core.Grammar:
    """The grammar over the tokens of an open Llama, at its beginning.

    Raises:
        ValueError: llama.cpp cannot parse it, or would not survive it.
        TypeError: not a LlamaGrammar.
    """
    if not isinstance(grammar, LlamaGrammar):
        raise TypeError(f"grammar={grammar!r} must be a llama_cpp.LlamaGrammar: make one by LlamaGrammar.from_string")
    if "\0" in grammar._grammar:  # where C would take it to end
        raise ValueError("the grammar has a null character in it: take it out")
    check_gbnf(grammar._grammar, _RECENT)
    vocab, known = libllama.vocab_of(llama._model), _known_of(llama)
    if known.first_bytes is None:
        known.first_bytes = _core.FirstBytes(libllama.API, vocab)
    return _core.Grammar(libllama.API, vocab, known.first_bytes, grammar._grammar, grammar._root)


def sequence_breakers_of(llama: BaseLlama, texts: tuple[str, ...]) -> _core.SequenceBreakers:
    """The texts in the tokens of an open Llama, which remembers those of the last call.

    Raises:
        ValueError: an empty text, one that is too long, or too many.
    """
    known = _known_of(llama)
    if known.breakers is None or known.breakers[0] != texts:
        vocab = libllama.vocab_of(llama._model)
        if known.token_texts is None:
            known.token_texts = _core.TokenTexts(libllama.API, vocab)
        known.breakers = (texts, _core.breakers_of_texts(libllama.API, vocab, list(texts), known.token_texts))
    return known.breakers[1]


def _known_of(llama: BaseLlama) -> _Known:
    return _KNOWN.setdefault(llama, _Known())
