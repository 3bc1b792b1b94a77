"""Makes text of tokens, one by one. A character may take several tokens, and stop strings must not be shown."""

from __future__ import annotations

import codecs
import copy
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol

from llama_cpp.llama_tokenizer import LlamaTokenizer

from .base_class import BaseLlama

_REPLACEMENT = "\ufffd".encode()


class Pieces(Protocol):
    """An object that knows the bytes of tokens, such as ``engine.model.Model``."""

    @property
    def bos(self) -> int:
        """The token that texts begin with."""

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes of a token. Those of a special token are its name if `special` is true, else there are none."""


def has_own_tokenizer(llama: BaseLlama) -> bool:
    """Whether a Llama uses its model's own tokenizer, in which a token has the same text wherever it is."""
    tokenizer = llama.tokenizer_
    return type(tokenizer) is LlamaTokenizer and tokenizer._model is llama._model


def text_of(pieces: Pieces, tokens: Sequence[int], special: bool = False) -> bytes:
    """The text of tokens. As in llama_cpp, the space that a tokenizer puts after BOS is left out."""
    text = b"".join([pieces.piece(token, special=special) for token in tokens])
    return text.removeprefix(b" ") if tokens and tokens[0] == pieces.bos else text


class StopString:
    """Finds one string of bytes in a text that arrives in pieces. Each byte is looked at once.

    It is the automaton of Knuth, Morris, Pratt, "Fast Pattern Matching in Strings", SIAM J. Comput. 6 (1977).

    Attributes:
        num_matched: how many bytes at the end of the text are a beginning of the string. They must not be shown yet.
    """

    def __init__(self, stop: bytes) -> None:
        self._stop = stop
        self._shorter = _shorter_matches(stop)
        self.num_matched = 0

    def __len__(self) -> int:
        """The length of the stop string in bytes."""
        return len(self._stop)

    def find_end(self, piece: bytes) -> int:
        """Append a piece. Returns the end, in the piece, of the first complete match; -1 if there is none."""
        return next(self.ends(piece), -1)

    def ends(self, piece: bytes) -> Iterator[int]:
        """Append a piece. Yields the end, in the piece, of each complete match. The iterator must be exhausted."""
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
    """For each beginning of the string, the length of its longest proper prefix that is also its suffix."""
    shorter = [0]
    for byte in stop[1:]:
        matched = shorter[-1]
        while matched and stop[matched] != byte:
            matched = shorter[matched - 1]
        shorter.append(matched + (stop[matched] == byte))
    return shorter


class _NamedText:
    """Finds stop strings that contain names of special tokens. These names are not shown in the text.

    The name of a special token can only match as a whole: a part of the name is no text.

    Args:
        stops: the stop strings, each in its state at the end of the text before the first special token.
        size: the length of that text in bytes.
    """

    def __init__(self, stops: list[StopString], size: int) -> None:
        self._stops = [copy.copy(stop) for stop in stops]
        self._size = size  # bytes of the text without names
        self._names: list[tuple[int, int]] = []  # for each name, the size of the text before it, and its own length

    def add(self, piece: bytes, name: bytes) -> list[tuple[int, int]]:
        """Append a token: its text, or its name if it is special. Finds the stop strings that are complete now.

        Returns:
            For each such stop string (place, number): where it begins in the text without names, and its index.
        """
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
        """How many bytes at the end of the text without names may be the beginning of a stop string."""
        return max([self._shown_of(stop.num_matched)[0] for stop in self._stops])

    def _shown_of(self, count: int) -> tuple[int, bool]:
        """How many of the last `count` bytes are no names; and False if these bytes begin in the middle of a name."""
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
    """Collects the bytes of a completion, and decides how much of them can be shown.

    With llama.cpp's own tokenizer, each token takes time in proportion to its own length. With another tokenizer the
    text of a token may depend on its context. Then the whole answer is detokenized again for each token.

    Args:
        pieces: gives the bytes of tokens.
        stops: the stop strings. The text ends before the first one. They may contain names of special tokens.
        at_start: whether there is no text before these tokens. Then a leading space is left out, as in the base class.
        whole: a function that detokenizes all tokens with another tokenizer; None for llama.cpp's own.
        shown_tokens: the special tokens whose names are in the text. Other special tokens show nothing.

    Attributes:
        tokens: the tokens so far.
        offsets: for each token, how many characters come before it.
        stopped_by: the stop string that ended the text; None if none has yet.
        num_taken: the number of tokens whose text `take` has yielded.
    """

    def __init__(
        self,
        pieces: Pieces,
        stops: list[bytes],
        *,
        at_start: bool = False,
        whole: Callable[[list[int]], bytes] | None = None,
        shown_tokens: Collection[int] = (),
    ) -> None:
        self._pieces = pieces
        self._bos = pieces.bos
        self._whole = whole
        self._shown_tokens = shown_tokens
        self._stops = [StopString(stop) for stop in stops]
        self._given = stops
        self.stopped_by: str | None = None
        self._named: _NamedText | None = None  # made at the first special token
        self._drops_space = at_start
        self.tokens: list[int] = []
        self._bytes = bytearray()
        self._ends: list[int] = []  # for each token, the end of its bytes
        self._end = -1  # the beginning of the first stop string, once there is one
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")
        self._counter = codecs.getincrementaldecoder("utf-8")(errors="ignore")
        self._num_chars = 0
        self.offsets: list[int] = []
        self.num_taken = 0
        self._taken = 0  # bytes whose text `take` has yielded

    @property
    def num_tokens(self) -> int:
        """The number of tokens."""
        return len(self.tokens)

    def add(self, token: int) -> bool:
        """Append a token. Returns True if a stop string is complete: the text ends before that stop string."""
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
        """The whole text, without a stop string, and without an unfinished character at its end."""
        end = self._end if self._end >= 0 else len(self._bytes)
        return self._bytes[:end].decode("utf-8", errors="ignore")

    def take(self, final: bool) -> Iterator[tuple[str, int, int]]:
        """Take the pieces of text that can be shown now.

        Bytes that may be the beginning of a stop string or of a character are held back, unless `final` says that no
        token follows.

        Yields:
            The text, the index of its first token, and the number of its tokens.
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
        # Tokens that have no text yet, because they are part of a character, wait for the token that completes it.
        self.num_taken = first

    def _piece(self, token: int) -> bytes:
        """The bytes that a token adds. As in the base class, the space that a tokenizer puts after BOS is left out."""
        if len(self.tokens) == 1 and token == self._bos:
            self._drops_space = True
        piece = self._pieces.piece(token, special=token in self._shown_tokens)
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
        """The bytes that the last token adds to a text; all bytes, if this token has changed the text before it."""
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
        """How many bytes at the end may be the beginning of a stop string, or may still change."""
        held = max([0, *[stop.num_matched for stop in self._stops]])  # a list is faster than a generator here
        if self._named is not None:
            held = max(held, self._named.uncertain())
        if self._whole is not None and self._bytes.endswith(_REPLACEMENT):
            # Other tokenizers show an unfinished character as replacement characters.
            held = max(held, len(self._bytes) - len(self._bytes.rstrip(_REPLACEMENT)))
        return held
