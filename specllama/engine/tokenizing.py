"""Tokens of texts, and texts of tokens, while another thread may close the Llama."""

from __future__ import annotations

from specllama.backend.base_class import BaseLlama

from .readers import Readers


class Tokenizing(BaseLlama):
    """The base class's methods that read the vocabulary for long: closing waits for them, and frees it then.

    Attributes:
        tokenizing: who is in one of them. Set before the base class opens anything.
    """

    tokenizing: Readers

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """See ``llama_cpp.Llama``. Any thread may call it, at any time.

        Raises:
            ClosedError: the Llama is closed.
        """
        with self.tokenizing:
            return super().tokenize(text, add_bos, special)

    def detokenize(self, tokens: list[int], prev_tokens: list[int] | None = None, special: bool = False) -> bytes:
        """See ``llama_cpp.Llama``. Any thread may call it, at any time.

        Raises:
            ClosedError: the Llama is closed.
        """
        with self.tokenizing:
            return super().detokenize(tokens, prev_tokens, special)
