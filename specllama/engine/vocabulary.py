"""What the native side makes of a model's vocabulary: grammars over its tokens, and texts in its tokens."""

from __future__ import annotations

import re
import threading

import llama_cpp
from llama_cpp.llama_grammar import LlamaGrammar

from specllama import _core
from specllama.backend import libllama
from specllama.backend.base_class import BaseLlama
from specllama.grammars.gbnf import check_gbnf

from .per_model import PerModel
from .writable import unwritable

# Whether llama.cpp survives loops without text (its pull request 18604) and great repetitions. This release does for
# sure, some before it may.
_RECENT = tuple(map(int, re.findall(r"\d+", llama_cpp.__version__)[:3])) >= (0, 3, 26)


class _LastBreakers:
    """The texts of the last call, in tokens."""

    def __init__(self, llama: BaseLlama) -> None:
        self._vocab = libllama.vocab_of(llama._model)
        self._words: _core.TokenTexts | None = None
        self._last: tuple[tuple[str, ...], _core.SequenceBreakers] | None = None
        self._lock = threading.Lock()

    def __call__(self, texts: tuple[str, ...]) -> _core.SequenceBreakers:
        with self._lock:
            if self._last is None or self._last[0] != texts:
                if self._words is None:  # which takes a while
                    self._words = _core.TokenTexts(libllama.API, self._vocab)
                self._last = texts, _core.breakers_of_texts(libllama.API, self._vocab, list(texts), self._words)
            return self._last[1]


_first_bytes = PerModel(lambda llama: _core.FirstBytes(libllama.API, libllama.vocab_of(llama._model)))
_last_breakers = PerModel(_LastBreakers)


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
    vocab = libllama.vocab_of(llama._model)
    return _core.Grammar(libllama.API, vocab, _first_bytes(llama), grammar._grammar, grammar._root)


def sequence_breakers_of(llama: BaseLlama, texts: tuple[str, ...]) -> _core.SequenceBreakers:
    """The texts in the tokens of an open Llama, which remembers those of the last call.

    Raises:
        ValueError: an empty text, one that is too long, or too many.
    """
    # Of longer texts the rest behind a token is tokenized.
    known = (text for text in texts if len(text) == 1 or not unwritable(llama, text.encode(), special=False))
    return _last_breakers(llama)(tuple(known))
