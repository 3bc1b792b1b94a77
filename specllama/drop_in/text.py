"""Text out of tokens, one at a time: multi-byte characters, and stop strings that must not leak."""

from __future__ import annotations

import codecs
import copy
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol

from llama_cpp.llama_tokenizer import LlamaTokenizer

from .base_class import BaseLlama

_REPLACEMENT = "\ufffd".encode()


class Pieces(Protocol):
    """Gives the bytes of tokens: ``engine.model.Model``."""

    @property
    def bos(self) -> int:
        """The token with which texts begin."""

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes of a token; of a special one its name, or none."""


def has_own_tokenizer(llama: BaseLlama) -> bool:
    """Whether a Llama's tokenizer is its model's: each token has the same text wherever it is."""
    tokenizer = llama.tokenizer_
    return type(tokenizer) is LlamaTokenizer and tokenizer._model is llama._model


def text_of(pieces: Pieces, tokens: Sequence[int], special: bool = False) -> bytes:
    """The text of tokens. As in llama_cpp, BOS takes with it the space that a tokenizer puts behind it."""
    text = b"".join([pieces.piece(token, special=special) for token in tokens])
    return text.removeprefix(b" ") if tokens and tokens[0] == pieces.bos else text


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
        return next(self.ends(piece), -1)

    def ends(self, piece: bytes) -> Iterator[int]:
        """Append a piece. Where in it the string is complete, behind which bytes; to be read to its end."""
        stop, matched = self._stop, self.num_matched
        if not matched and stop[0] not in piece:
            return
        for end, byte in enumerate(piece, 1):
            while matched and stop[matched] != byte:
                matched = self._shorter[matched - 1]
            matched += stop[matched] == byte
            if matched == len(stop):
                yield end
                matched = self._shorter[-1]
        self.num_matched = matched


def _shorter_matches(stop: bytes) -> list[int]:
    """Of each beginning of the string: how long the longest shorter one is that it ends with."""
    shorter = [0]
    for byte in stop[1:]:
        matched = shorter[-1]
        while matched and stop[matched] != byte:
            matched = shorter[matched - 1]
        shorter.append(matched + (stop[matched] == byte))
    return shorter


class _NamedText:
    """A text in which each special token has its name: where stop strings with such names are complete.

    A name is in a stop string as a whole, or not at all: it shows nothing of which a part could be meant.

    Args:
        stops: as they are behind the text before the first special token.
        size: how many bytes that has.
    """

    def __init__(self, stops: list[StopString], size: int) -> None:
        self._stops = [copy.copy(stop) for stop in stops]
        self._size = size  # of what is shown
        self._names: list[tuple[int, int]] = []  # how much was shown before each, and how long it is

    def add(self, piece: bytes, name: bytes) -> list[tuple[int, int]]:
        """Append a token: what it shows, or its name. Where in what is shown which stop strings begin, if complete."""
        if name:
            self._names.append((self._size, len(name)))
        else:
            self._size += len(piece)
        begins = []
        for number, stop in enumerate(self._stops):
            for end in stop.ends(name or piece):
                behind = len(name or piece) - end
                if name and behind:
                    continue
                shown, is_whole = self._shown_of(len(stop) + behind)
                if is_whole:
                    begins.append((self._size - shown, number))
        return begins

    def uncertain(self) -> int:
        """How many of the last bytes that are shown may be the beginning of a stop string."""
        return max([self._shown_of(stop.num_matched)[0] for stop in self._stops])

    def _shown_of(self, count: int) -> tuple[int, bool]:
        """How many of the last bytes are shown, and whether the first is not in the middle of a name."""
        at, shown = self._size, 0
        for before, length in reversed(self._names):
            if count <= at - before:
                break
            count, shown, at = count - (at - before), shown + at - before, before
            if count < length:
                return shown, False
            count -= length
        return shown + count, True


class TextAssembler:
    """Collects the bytes of a completion and says how much of them can be shown.

    A token costs O(its own length), not O(the length of the answer), with llama.cpp's own tokenizer. Other
    tokenizers may give a token other text in another context, so with them the whole answer is detokenised again.

    Args:
        pieces: gives the bytes of tokens.
        stops: the text ends before the first of these. They may have names of special tokens, which are not shown.
        at_start: there is no text before them. As in the base class, a leading space is left out then.
        whole: what another tokenizer makes of all tokens; None for llama.cpp's own.
        shown: special tokens that stand in the text by their names. Others are not shown.

    Attributes:
        offsets: how many characters come before each token.
        stopped_by: the stop string that was complete first.
    """

    def __init__(
        self,
        pieces: Pieces,
        stops: list[bytes],
        *,
        at_start: bool = False,
        whole: Callable[[list[int]], bytes] | None = None,
        shown: Collection[int] = (),
    ) -> None:
        self._pieces = pieces
        self._bos = pieces.bos
        self._whole = whole
        self._shown = shown
        self._stops = [StopString(stop) for stop in stops]
        self._given = stops
        self.stopped_by: str | None = None
        self._named: _NamedText | None = None  # from the first special token on
        self._drops_space = at_start
        self.tokens: list[int] = []
        self._bytes = bytearray()
        self._ends: list[int] = []  # where each token's bytes end
        self._end = -1  # where the first stop string begins
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")
        self._counter = codecs.getincrementaldecoder("utf-8")(errors="ignore")
        self._num_chars = 0
        self.offsets: list[int] = []
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
        piece = self._piece(token) if self._whole is None else self._end_of(self._whole(self.tokens))
        before = len(self._bytes)
        self._bytes += piece
        self._ends.append(len(self._bytes))
        self.offsets.append(max([self._num_chars, *self.offsets[-1:]]))
        self._num_chars += len(self._counter.decode(piece))
        ends = [stop.find_end(piece) for stop in self._stops]
        begins = [(before + end - len(self._given[number]), number) for number, end in enumerate(ends) if end >= 0]
        if self._stops and (self._named or not piece):
            begins += self._begins_with_names(token, piece)
        if begins:
            self._end, number = min(begins)
            self.stopped_by = self._given[number].decode("utf-8", errors="replace")
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
        if len(self.tokens) == 1 and token == self._bos:
            self._drops_space = True
        piece = self._pieces.piece(token, special=token in self._shown)
        if self._drops_space and piece:
            self._drops_space = False
            return piece.removeprefix(b" ")
        return piece

    def _begins_with_names(self, token: int, piece: bytes) -> list[tuple[int, int]]:
        name = b"" if piece or self._pieces.piece(token) else self._pieces.piece(token, special=True)
        if self._named is None:
            if not name:
                return []
            self._named = _NamedText(self._stops, len(self._bytes))
        return self._named.add(piece, name)

    def _end_of(self, whole: bytes) -> bytes:
        """What the last token adds; all of the text if it changes what came before."""
        if whole.startswith(self._bytes):
            return whole[len(self._bytes) :]
        self._bytes.clear()
        for stop in self._stops:
            stop.num_matched = 0
        self._named = None
        self._counter.reset()
        self._num_chars = 0
        return whole

    def _uncertain(self) -> int:
        """How many of the last bytes may be the beginning of a stop string, or not be what they seem yet."""
        held = max([0, *[stop.num_matched for stop in self._stops]])  # no generator: this is done for every token
        if self._named is not None:
            held = max(held, self._named.uncertain())
        if self._whole is not None and self._bytes.endswith(_REPLACEMENT):
            # How other tokenizers show part of a character.
            held = max(held, len(self._bytes) - len(self._bytes.rstrip(_REPLACEMENT)))
        return held
