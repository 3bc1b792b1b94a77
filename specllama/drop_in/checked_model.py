"""llama_cpp's class for a model, with checks of arguments, which llama_cpp hands to llama.cpp unchecked."""

from __future__ import annotations

import weakref
from typing import Any

from llama_cpp import _internals

from specllama.engine.model import Model
from specllama.engine.tokens_of_text import tokens_of

from .lending import lent


class CheckedModel(_internals.LlamaModel):
    """A model whose methods refuse arguments that would end the process.

    Attributes:
        llama: the Llama that the model belongs to.
    """

    llama: weakref.ref[Any]
    _lent: Model | None = None

    def tokenize(self, text: bytes, add_bos: bool, special: bool) -> list[int]:
        """See the base class.

        Raises:
            TypeError: `text` is no bytes.
            ValueError: the tokenizer cannot read the text (`tokens_of`).
        """
        if self._lent is None:
            self._lent = lent(self._owner)
        with self._lent.kept():  # another thread that closes the Llama waits for the end of this block
            return tokens_of(self._lent, text, add_bos, special)

    def detokenize(self, tokens: list[int], special: bool = False) -> bytes:
        """See the base class.

        Raises:
            TypeError, ValueError: these are no tokens of the vocabulary.
        """
        text: bytes = super().detokenize(self._owner.known_tokens(tokens), bool(special))
        return text

    def token_to_piece(self, token: int, special: bool = False) -> bytes:
        """See the base class.

        Raises:
            TypeError, ValueError: this is no token of the vocabulary.
        """
        piece: bytes = super().token_to_piece(self._known(token), bool(special))
        return piece

    def token_get_text(self, token: int) -> str:
        """See the base class.

        Raises:
            TypeError, ValueError: this is no token of the vocabulary.
        """
        return super().token_get_text(self._known(token))

    def token_get_score(self, token: int) -> float:
        """See the base class.

        Raises:
            TypeError, ValueError: this is no token of the vocabulary.
        """
        return super().token_get_score(self._known(token))

    def token_get_attr(self, token: int) -> int:
        """See the base class.

        Raises:
            TypeError, ValueError: this is no token of the vocabulary.
        """
        return super().token_get_attr(self._known(token))

    @property
    def _owner(self) -> Any:
        owner = self.llama()
        if owner is None:
            raise ReferenceError("the Llama of this model is gone")
        return owner

    def _known(self, token: int) -> int:
        [found] = self._owner.known_tokens([token])
        return int(found)
