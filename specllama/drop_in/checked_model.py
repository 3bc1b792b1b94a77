"""llama_cpp's own object of a model, for whoever calls its methods: what they hand to llama.cpp is looked at before."""

from __future__ import annotations

import weakref
from typing import Any

from llama_cpp import _internals

from specllama.engine.model import Model
from specllama.engine.tokens_of_text import tokens_of

from .lending import lent


class CheckedModel(_internals.LlamaModel):
    """A model that refuses what would end the process.

    Attributes:
        llama: whose it is.
    """

    llama: weakref.ref[Any]
    _lent: Model | None = None

    def tokenize(self, text: bytes, add_bos: bool, special: bool) -> list[int]:
        """See the base class.

        Raises:
            TypeError, ValueError: see `tokens_of`.
        """
        if self._lent is None:
            self._lent = lent(self._owner)
        with self._lent.kept():  # closing may have begun, and waits
            return tokens_of(self._lent, text, add_bos, special)

    def detokenize(self, tokens: list[int], special: bool = False) -> bytes:
        """See the base class. Raises what `token_ids` raises."""
        text: bytes = super().detokenize(self._owner.known_tokens(tokens), bool(special))
        return text

    def token_to_piece(self, token: int, special: bool = False) -> bytes:
        """See the base class. Raises what `token_ids` raises."""
        piece: bytes = super().token_to_piece(self._known(token), bool(special))
        return piece

    def token_get_text(self, token: int) -> str:
        """See the base class. Raises what `token_ids` raises."""
        return super().token_get_text(self._known(token))

    def token_get_score(self, token: int) -> float:
        """See the base class. Raises what `token_ids` raises."""
        return super().token_get_score(self._known(token))

    def token_get_attr(self, token: int) -> int:
        """See the base class. Raises what `token_ids` raises."""
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
