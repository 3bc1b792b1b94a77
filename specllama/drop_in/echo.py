"""The prompt as an answer with ``echo`` repeats it: the prompt's text, and where in the text each token begins."""

from __future__ import annotations

import codecs
import dataclasses
import itertools
from collections.abc import Sequence

from specllama.engine.model import Model

from .text import TextAssembler

_SPACE = "\u2581".encode()  # SentencePiece reads this character as a space
_FAR = 64  # bytes that are searched for a token's text if it does not follow the text of the token before at once


@dataclasses.dataclass(frozen=True)
class Echo:
    """The text and the tokens of a prompt."""

    text: str
    tokens: Sequence[int]
    offsets: list[int]
    """For each token, how many characters of the text come before it."""

    def pieces(self) -> list[str]:
        """The part of the text that each token has. A character of several tokens belongs to the last of these."""
        if not self.offsets:
            return []
        edges = [0, *self.offsets[1:], len(self.text)]
        return [self.text[start:end] for start, end in itertools.pairwise(edges)]

    def between(self, before: Sequence[int], behind: Sequence[int]) -> Echo:
        """The echo with further tokens before and after its own. The further tokens have no part of the text."""
        offsets = [0] * len(before) + self.offsets + [len(self.text)] * len(behind)
        return Echo(self.text, [*before, *self.tokens, *behind], offsets)


def echo_of_tokens(model: Model, tokens: Sequence[int]) -> Echo:
    """The echo of a prompt that was given as tokens. The text of special tokens is their name."""
    assembler = TextAssembler(model, [], shown_tokens=frozenset(tokens))
    for token in tokens:
        assembler.add(token)
    return Echo(assembler.text(), tokens, assembler.offsets)


def echo_of_text(model: Model, text: str, tokens: Sequence[int]) -> Echo:
    """The echo of a prompt that was given as text. The tokens' texts may differ from it, for example by a space."""
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
    """The begin and the end of a token's bytes in a text, at or after `at`; (`at`, `at`) if they are not found."""
    # A tokenizer may put a space before a text and after special tokens.
    forms = (piece, piece.removeprefix(b" "), piece.replace(b" ", _SPACE))
    for form in forms:
        if text.startswith(form, at):
            return at, at + len(form)
    found = text.find(piece, at, at + _FAR)
    return (found, found + len(piece)) if found >= 0 else (at, at)
