"""Counts the tokens that two files have in common. Only their headers are read."""

from __future__ import annotations

import dataclasses
import functools
import re

from .gguf_values import StoredTexts, UnusableFileError, read_without_texts
from .written_tokens import written_tokens

NEARLY_EQUAL = 0.9
"""The share of each vocabulary's tokens that must be in the other one, unless one is the beginning of the other.

With a smaller share, the draft counts as one with another tokenizer, which splits texts differently.
"""
LEAST_COMMON = 0.02
"""The share of the target's tokens that a draft of another tokenizer must have. With less it drafts almost nothing."""
_PADDING = re.compile(rb"\[PAD-?\d+\]|<\|?(unused|reserved)[^>]*>")
# Bytes of tokens. Files with equally many tokens, in which these bytes are equal, are taken to have one vocabulary.
_SAMPLE = 1 << 16


@dataclasses.dataclass(frozen=True)
class Shared:
    """How much of a target's vocabulary a draft has.

    Attributes:
        share: the share of the target's tokens, without padding, that the draft has, too. If the tokenizers differ,
            tokens are equal if they write the same text.
        is_foreign: whether the draft's tokenizer splits texts differently.
    """

    share: float
    is_foreign: bool


class SharedTokens:
    """The tokens of a target, to compare the tokens of other files with.

    Args:
        target: the place of the target's tokens in its file.
    """

    def __init__(self, target: StoredTexts) -> None:
        self._target = target
        self._known: dict[tuple[int, bytes], Shared | None] = {}

    def share(self, other: StoredTexts) -> Shared | None:
        """How many of the target's tokens another file has. Files with equal vocabularies are compared only once.

        Returns:
            None if the other file has too few of these tokens to draft.

        Raises:
            UnusableFileError: the file is damaged.
            OSError: the file cannot be read.
        """
        key = (other.count, other.beginning(_SAMPLE))
        if key not in self._known:
            self._known[key] = self._compared(other)
        return self._known[key]

    def _compared(self, other: StoredTexts) -> Shared | None:
        if other.count == self._target.count and other.beginning(len(self._stored)) == self._stored:
            return Shared(1.0, is_foreign=False)
        texts = other.read()
        share = self._by_name(texts)
        return self._by_text(other.path, texts) if share is None else Shared(share, is_foreign=False)

    def _by_name(self, listed: list[bytes]) -> float | None:
        ours, theirs = set(self._texts), set(listed)
        both = len(ours & theirs)
        sizes = [len(one) - sum(map(_is_padding, one - another)) for one, another in ((ours, theirs), (theirs, ours))]
        count = min(len(listed), len(self._texts))
        fits = both >= NEARLY_EQUAL * max(sizes) or listed[:count] == self._texts[:count]
        return both / max(1, sizes[0]) if fits else None

    def _by_text(self, path: str, texts: list[bytes]) -> Shared | None:
        theirs = written_tokens(path, texts)
        share = len(self._written & theirs) / max(1, len(self._written))
        return Shared(share, is_foreign=True) if share >= LEAST_COMMON else None

    @functools.cached_property
    def _written(self) -> frozenset[str]:
        return written_tokens(self._target.path, self._texts)

    @functools.cached_property
    def _stored(self) -> bytes:
        return self._target.stored()

    @functools.cached_property
    def _texts(self) -> list[bytes]:
        return self._target.read()


def _is_padding(text: bytes) -> bool:
    return _PADDING.fullmatch(text) is not None


def have_same_tokens(one: str, other: str) -> bool:
    """Whether two files have the same tokens with the same ids.

    This takes a tenth of the time that loading a vocabulary takes.

    Returns:
        False also if one of the files is no model, or cannot be read.
    """
    try:
        (_, ours), (_, theirs) = (read_without_texts(path, until_tokens=True) for path in (one, other))
        if ours is None or theirs is None or ours.count != theirs.count:
            return False
        return ours.stored() == theirs.stored()
    except (UnusableFileError, OSError):
        return False
