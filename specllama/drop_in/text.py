"""Text out of tokens, one at a time: multi-byte characters, and stop strings that must not leak."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from llama_cpp.llama_tokenizer import LlamaTokenizer

from .base_class import BaseLlama

_REPLACEMENT = "\ufffd".encode()


class StopString:
    """Looks for one string of bytes in a text given piece by piece, and looks at each byte once.

    The automaton of Knuth, Morris, Pratt, "Fast Pattern Matching in Strings", SIAM J. Comput. 6 (1977).

    Attributes:
        num_matched: how many bytes at the end of the text are a beginning of the string: they may not be shown yet.
    """

    def __init__(self, stop: bytes) -> None:
        self._stop = stop
        self._shorter = _shorter_matches(stop)
        self.num_matched = 0

    def __len__(self) -> int:
        """How many bytes it has."""
        return len(self._stop)

    def find_end(self, piece: bytes) -> int:
        """Append a piece. Where in it the string is complete for the first time: behind that byte; -1 if it is not."""
        stop, matched = self._stop, self.num_matched
        if not matched and stop[0] not in piece:
            return -1
        for end, byte in enumerate(piece, 1):
            while matched and stop[matched] != byte:
                matched = self._shorter[matched - 1]
            matched += stop[matched] == byte
            if matched == len(stop):
                return end
        self.num_matched = matched
        return -1


def _shorter_matches(stop: bytes) -> list[int]:
    """Of each beginning of the string: how long the longest shorter one is that it ends with."""
    shorter = [0]
    for byte in stop[1:]:
        matched = shorter[-1]
        while matched and stop[matched] != byte:
            matched = shorter[matched - 1]
        shorter.append(matched + (stop[matched] == byte))
    return shorter


class TextAssembler:
    """Collects the bytes of a completion and says how much of them can be shown.

    A token costs O(its own length), not O(the length of the answer), with llama.cpp's own tokenizer. Other
    tokenizers may give a token other text in another context, so with them the whole answer is detokenised again.

    Args:
        llama: whose tokens they are.
        prompt_tokens: what comes before them.
        stops: the text ends before the first of these.
        at_start: there is no text before them. As in the base class, a leading space is left out then.
    """

    def __init__(
        self, llama: BaseLlama, prompt_tokens: list[int], stops: list[bytes], *, at_start: bool = False
    ) -> None:
        self._llama = llama
        self._prompt_tokens = prompt_tokens
        self._stops = [StopString(stop) for stop in stops]
        self._is_additive = type(llama.tokenizer_) is LlamaTokenizer
        self._pieces: dict[int, bytes] = {}  # of tokens seen before
        self._drops_space = at_start
        self.tokens: list[int] = []
        self._bytes = bytearray()
        self._ends: list[int] = []  # where each token's bytes end
        self._end = -1  # where the first stop string begins
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")
        self.num_taken = 0
        """How many tokens the pieces taken so far belong to."""
        self._taken = 0  # bytes

    @property
    def num_tokens(self) -> int:
        """How many tokens have been added."""
        return len(self.tokens)

    def add(self, token: int) -> bool:
        """Append a token. True if a stop string is complete: the text ends before it."""
        self.tokens.append(token)
        piece = self._piece(token) if self._is_additive else self._end_of_whole()
        before = len(self._bytes)
        self._bytes += piece
        self._ends.append(len(self._bytes))
        begins = [before + end - len(stop) for stop in self._stops if (end := stop.find_end(piece)) >= 0]
        if begins:
            self._end = min(begins)
        return bool(begins)

    def text(self) -> str:
        """The whole text, without a stop string or half a character at its end."""
        end = self._end if self._end >= 0 else len(self._bytes)
        return self._bytes[:end].decode("utf-8", errors="ignore")

    def take(self, final: bool) -> Iterator[tuple[str, int, int]]:
        """The pieces that can be shown and have not been: text, index of the first token, number of tokens.

        Holds back what may be the beginning of a stop string or of a character, unless this is the end.
        """
        limit = self._end if self._end >= 0 else len(self._bytes) - (0 if final else self._uncertain())
        first = self.num_taken
        while self.num_taken < len(self._ends) and (final or self._ends[self.num_taken] <= limit):
            end = min(self._ends[self.num_taken], limit)
            self.num_taken += 1
            text = self._decoder.decode(bytes(self._bytes[self._taken : end]))
            self._taken = max(self._taken, end)
            if text:
                yield text, first, self.num_taken - first
                first = self.num_taken
        # Tokens without text yet (part of a character) wait for those that complete it.
        self.num_taken = first

    def _piece(self, token: int) -> bytes:
        """What a token adds. As in the base class, BOS takes with it the space that a tokenizer puts behind it."""
        if len(self.tokens) == 1 and token == self._llama.token_bos():
            self._drops_space = True
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._llama.detokenize([token])
        if self._drops_space and piece:
            self._drops_space = False
            return piece.removeprefix(b" ")
        return piece

    def _end_of_whole(self) -> bytes:
        """What the last token adds; all of the text if it changes what came before."""
        whole = self._llama.detokenize(self.tokens, prev_tokens=self._prompt_tokens)
        if whole.startswith(self._bytes):
            return whole[len(self._bytes) :]
        self._bytes.clear()
        for stop in self._stops:
            stop.num_matched = 0
        return whole

    def _uncertain(self) -> int:
        """How many of the last bytes may be the beginning of a stop string, or not be what they seem yet."""
        held = max([0, *[stop.num_matched for stop in self._stops]])  # no generator: this is done for every token
        if not self._is_additive and self._bytes.endswith(_REPLACEMENT):
            # How other tokenizers show part of a character.
            held = max(held, len(self._bytes) - len(self._bytes.rstrip(_REPLACEMENT)))
        return held
