"""The methods that make tokens of text and text of tokens. Another thread may close the Llama meanwhile."""

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
    """A subclass of ``llama_cpp.Llama`` whose tokenizing methods may be called by any thread.

    Closing the Llama waits until no thread runs one of these methods.

    Attributes:
        tokenizing: counts the threads in these methods. It must be set before the base class's constructor runs.
    """

    tokenizing: _core.Block

    @property
    def _model(self) -> Any:
        return self.__dict__["_model"]

    @_model.setter
    def _model(self, model: Any) -> None:
        if type(model) is _internals.LlamaModel:  # made by the base class's constructor
            checked: Any = model
            checked.__class__ = CheckedModel
            checked.llama = weakref.ref(self)
        self.__dict__["_model"] = model

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """See ``llama_cpp.Llama``. Any thread may call this at any time.

        Raises:
            ClosedError: the Llama is closed.
            TypeError: `text` is no bytes.
            ValueError: the tokenizer cannot read the text (`tokens_of`).
        """
        with self.tokenizing:
            return super().tokenize(text, add_bos, special)

    def detokenize(self, tokens: list[int], prev_tokens: list[int] | None = None, special: bool = False) -> bytes:
        """See ``llama_cpp.Llama``. Any thread may call this at any time.

        Raises:
            ClosedError: the Llama is closed.
            TypeError: `tokens` is no sequence of ints.
            ValueError: a token is not in the vocabulary.
        """
        with self.tokenizing:
            known = self.known_tokens(tokens)
            before = None if prev_tokens is None else self.known_tokens(prev_tokens, "prev_tokens")
            if has_own_tokenizer(self):
                return text_of(lent(self), known, special)
            return super().detokenize(known, before, special)

    def known_tokens(self, tokens: Any, name: str = "tokens") -> list[int]:
        """Check that all tokens are in the vocabulary. For any other token llama.cpp would end the process.

        Args:
            tokens: the tokens.
            name: the name of the tokens in error messages.

        Returns:
            The tokens as a list of ints.

        Raises:
            TypeError: `tokens` is no sequence of ints.
            ValueError: a token is not in the vocabulary.
        """
        most = self._n_vocab
        if isinstance(tokens, list) and all(type(token) is int and 0 <= token < most for token in tokens):
            return tokens  # the usual case
        found: list[int] = token_ids(tokens, name, most).tolist()
        return found

    def tokenizer(self) -> LlamaTokenizer:
        """See ``llama_cpp.Llama``."""
        return _Tokenizer(self)


class _Tokenizer(LlamaTokenizer):
    """The model's own tokenizer, even if the Llama uses another one. Any thread may use it at any time."""

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
