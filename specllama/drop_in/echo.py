"""The prompt, as an answer with ``echo`` repeats it."""

from __future__ import annotations

import codecs
import dataclasses
import itertools
from collections.abc import Sequence

from specllama.engine.model import Model

from .text import TextAssembler

_SPACE = "\u2581".encode()  # which SentencePiece reads as a space
_FAR = 64  # bytes within which the text of a token is looked for, where what is before it got lost


@dataclasses.dataclass(frozen=True)
class Echo:
    """A prompt's text and its tokens."""

    text: str
    tokens: Sequence[int]
    offsets: list[int]
    """How many characters of the text come before each token."""

    def pieces(self) -> list[str]:
        """What each token has of the text. Together they are the text; a character is the last of its tokens'."""
        if not self.offsets:
            return []
        edges = [0, *self.offsets[1:], len(self.text)]
        return [self.text[start:end] for start, end in itertools.pairwise(edges)]


def echo_of_tokens(model: Model, tokens: Sequence[int]) -> Echo:
    """A prompt that was given as tokens: special ones show nothing."""
    assembler = TextAssembler(model, [])
    for token in tokens:
        assembler.add(token)
    return Echo(assembler.text(), tokens, assembler.offsets)


def echo_of_text(model: Model, text: str, tokens: Sequence[int]) -> Echo:
    """A prompt that was given as text, of which the tokens may not have everything, and may have more."""
    data, at, offsets = text.encode("utf-8"), 0, []
    counter, num_chars = codecs.getincrementaldecoder("utf-8")(), 0
    for token in tokens:
        begin, end = _place_of(model.piece(token, special=True), data, at)
        num_chars += len(counter.decode(data[at:begin]))
        offsets.append(num_chars)
        num_chars += len(counter.decode(data[begin:end]))
        at = end
    return Echo(text, tokens, offsets)


def _place_of(piece: bytes, text: bytes, at: int) -> tuple[int, int]:
    """Where a token's bytes begin and end in a text, from `at` on; nowhere (from `at` to `at`) if it has others."""
    # A tokenizer puts a space before a text, and behind special tokens.
    forms = (piece, piece.removeprefix(b" "), piece.replace(b" ", _SPACE))
    for form in forms:
        if text.startswith(form, at):
            return at, at + len(form)
    found = text.find(piece, at, at + _FAR)
    return (found, found + len(piece)) if found >= 0 else (at, at)
