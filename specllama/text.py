"""Text out of tokens, one at a time: multi-byte characters, and stop strings that must not leak."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import TYPE_CHECKING

from llama_cpp.llama_tokenizer import LlamaTokenizer

if TYPE_CHECKING:
    from .llama import Llama


class TextAssembler:
    """Collects the bytes of a completion and says how much of them can be shown.

    A token costs O(its own length), not O(the length of the answer), with llama.cpp's own tokenizer. Other
    tokenizers may give a token other text in another context, so with them the whole answer is detokenised again.
    """

    def __init__(self, llama: Llama, prompt_tokens: list[int], stops: list[bytes]) -> None:
        self._llama = llama
        self._prompt_tokens = prompt_tokens
        self._stops = stops
        self._longest_stop = max(map(len, stops), default=0)
        self._is_additive = type(llama.tokenizer_) is LlamaTokenizer
        self.tokens: list[int] = []
        self._bytes = bytearray()
        self._ends: list[int] = []  # where each token's bytes end
        self._end = -1  # where the first stop string begins
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")
        self._num_taken = 0  # tokens
        self._taken = 0  # bytes

    @property
    def num_tokens(self) -> int:
        """How many tokens have been added."""
        return len(self.tokens)

    def add(self, token: int) -> bool:
        """Append a token. True if a stop string is complete: the text ends before it."""
        before = len(self._bytes)
        self.tokens.append(token)
        if self._is_additive:
            self._bytes += self._llama.detokenize([token])
        else:
            self._bytes[:] = self._llama.detokenize(self.tokens, prev_tokens=self._prompt_tokens)
        self._ends.append(len(self._bytes))
        # A stop string that ends in this token begins at most its length before it.
        start = max(0, before - self._longest_stop + 1) if self._is_additive else 0
        found = [at for stop in self._stops if (at := self._bytes.find(stop, start)) >= 0]
        if found:
            self._end = min(found)
        return bool(found)

    def text(self) -> str:
        """The whole text, without a stop string or half a character at its end."""
        end = self._end if self._end >= 0 else len(self._bytes)
        return self._bytes[:end].decode("utf-8", errors="ignore")

    def take(self, final: bool) -> Iterator[tuple[str, int, int]]:
        """The pieces that can be shown and have not been: text, index of the first token, number of tokens.

        Holds back what may be the beginning of a stop string or of a character, unless this is the end.
        """
        limit = self._end if self._end >= 0 else len(self._bytes)
        if not final:
            limit -= self._possible_stop()
        first = self._num_taken
        while self._num_taken < len(self._ends) and (final or self._ends[self._num_taken] <= limit):
            end = min(self._ends[self._num_taken], limit)
            self._num_taken += 1
            text = self._decoder.decode(bytes(self._bytes[self._taken : end]))
            self._taken = max(self._taken, end)
            if text:
                yield text, first, self._num_taken - first
                first = self._num_taken
        # Tokens without text yet (part of a character) wait for those that complete it.
        self._num_taken = first

    def _possible_stop(self) -> int:
        """How many of the last bytes may be the beginning of a stop string."""
        for length in range(min(self._longest_stop - 1, len(self._bytes)), 0, -1):
            tail = self._bytes[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
