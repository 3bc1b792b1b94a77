"""Tokens of texts, and texts of tokens, while another thread may close the Llama."""

from __future__ import annotations

import weakref
from typing import Any

from llama_cpp import _internals
from llama_cpp.llama_tokenizer import LlamaTokenizer

from specllama import _core
from specllama.engine.model import token_ids

from .base_class import BaseLlama
from .checked_model import CheckedModel
from .lending import lent
from .text import has_own_tokenizer, text_of


class Tokenizing(BaseLlama):
    """The base class's methods that read the vocabulary for long: closing waits for them, and frees it then.

    Attributes:
        tokenizing: who is in one of them. Set before the base class opens anything.
    """

    tokenizing: _core.Block

    @property
    def _model(self) -> Any:
        return self.__dict__["_model"]

    @_model.setter
    def _model(self, model: Any) -> None:
        if type(model) is _internals.LlamaModel:  # the base class's constructor has made it
            checked: Any = model
            checked.__class__ = CheckedModel
            checked.llama = weakref.ref(self)
        self.__dict__["_model"] = model

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """See ``llama_cpp.Llama``. Any thread may call it, at any time.

        Raises:
            ClosedError: the Llama is closed.
            TypeError, ValueError: see `tokens_of`.
        """
        with self.tokenizing:
            return super().tokenize(text, add_bos, special)

    def detokenize(self, tokens: list[int], prev_tokens: list[int] | None = None, special: bool = False) -> bytes:
        """See ``llama_cpp.Llama``. Any thread may call it, at any time.

        Raises:
            ClosedError: the Llama is closed.
            ValueError: a token that the vocabulary does not have.
            TypeError: no tokens.
        """
        with self.tokenizing:
            known = self.known_tokens(tokens)
            before = None if prev_tokens is None else self.known_tokens(prev_tokens, "prev_tokens")
            if has_own_tokenizer(self):
                return text_of(lent(self), known, special)
            return super().detokenize(known, before, special)

    def known_tokens(self, tokens: Any, name: str = "tokens") -> list[int]:
        """Tokens of the vocabulary. llama.cpp ends the process when it is asked for the text of another.

        Raises:
            ValueError, TypeError: see `token_ids`.
        """
        most = self._n_vocab
        if isinstance(tokens, list) and all(type(token) is int and 0 <= token < most for token in tokens):
            return tokens  # which is nearly always so
        found: list[int] = token_ids(tokens, name, most).tolist()
        return found

    def tokenizer(self) -> LlamaTokenizer:
        """See ``llama_cpp.Llama``."""
        return _Tokenizer(self)


class _Tokenizer(LlamaTokenizer):
    """The model's own tokenizer, whatever tokenizer the Llama has, with what holds for the Llama's methods."""

    def __init__(self, llama: Tokenizing) -> None:
        self._llama = llama

    @property
    def _model(self) -> Any:  # type: ignore[override]
        return self._llama._model

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        with self._llama.tokenizing:
            return super().tokenize(text, add_bos, special)

    def detokenize(self, tokens: list[int], prev_tokens: list[int] | None = None, special: bool = False) -> bytes:
        with self._llama.tokenizing:
            return text_of(lent(self._llama), self._llama.known_tokens(tokens), special)
