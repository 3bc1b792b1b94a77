"""The prompt as an answer with ``echo`` repeats it: its text, and where each token begins in it."""

from __future__ import annotations

import codecs
import dataclasses
import itertools
from collections.abc import Sequence

from specllama.engine.model import Model

from .text import TextAssembler

_SPACE = "\u2581".encode()  # SentencePiece reads this character as a space
_FAR = 64  # bytes in which the text of a token is searched if it does not follow the one before


@dataclasses.dataclass(frozen=True)
class Echo:
    """The text and the tokens of a prompt."""

    text: str
    tokens: Sequence[int]
    offsets: list[int]
    """For each token, how many characters of the text come before it."""

    def pieces(self) -> list[str]:
        """The part of the text that each token has. A character made by several tokens belongs to the last of them."""
        if not self.offsets:
            return []
        edges = [0, *self.offsets[1:], len(self.text)]
        return [self.text[start:end] for start, end in itertools.pairwise(edges)]

    def between(self, before: Sequence[int], behind: Sequence[int]) -> Echo:
        """The echo with further tokens around it, which have none of the text."""
        offsets = [0] * len(before) + self.offsets + [len(self.text)] * len(behind)
        return Echo(self.text, [*before, *self.tokens, *behind], offsets)


def echo_of_tokens(model: Model, tokens: Sequence[int]) -> Echo:
    """The echo of a prompt that was given as tokens. The text of special tokens is their name."""
    assembler = TextAssembler(model, [], shown_tokens=frozenset(tokens))
    for token in tokens:
        assembler.add(token)
    return Echo(assembler.text(), tokens, assembler.offsets)


def echo_of_text(model: Model, text: str, tokens: Sequence[int]) -> Echo:
    """The echo of a prompt that was given as text. Its tokens together may have more text than it, or less."""
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
    """The begin and the end of a token's bytes in a text, at or after `at`; (`at`, `at`) if they are not there."""
    # A tokenizer may put a space before a text and after special tokens.
    forms = (piece, piece.removeprefix(b" "), piece.replace(b" ", _SPACE))
    for form in forms:
        if text.startswith(form, at):
            return at, at + len(form)
    found = text.find(piece, at, at + _FAR)
    return (found, found + len(piece)) if found >= 0 else (at, at)
