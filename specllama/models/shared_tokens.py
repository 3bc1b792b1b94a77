"""How many tokens files have in common, by their headers alone."""

from __future__ import annotations

import functools
import re

from .gguf_values import StoredTexts

NEARLY_EQUAL = 0.9
"""Of each vocabulary's tokens so many must be in the other one, unless one is the other's beginning. Where fewer are,
texts are cut otherwise.
"""
LEAST_COMMON = 0.02
"""A draft of another tokenizer must have so many of the target's tokens. With fewer it drafts next to nothing."""
_PADDING = re.compile(rb"\[PAD-?\d+\]|<\|?(unused|reserved)[^>]*>")
_SAMPLE = 1 << 16  # bytes: files that begin alike and have as many tokens are of one vocabulary


class SharedTokens:
    """The tokens of a target, with which those of other files are compared.

    Args:
        target: where its tokens are.
    """

    def __init__(self, target: StoredTexts) -> None:
        self._target = target
        self._known: dict[tuple[int, bytes], float | None] = {}

    def share(self, other: StoredTexts) -> float | None:
        """Of the target's tokens, padding left out, this share is in the other file, too.

        None: so few are in both that the other one cannot draft. Files of one vocabulary are compared once.

        Raises:
            ValueError: a damaged file.
            OSError: it cannot be read.
        """
        key = (other.count, other.beginning(_SAMPLE))
        if key not in self._known:
            self._known[key] = self._compared(other)
        return self._known[key]

    def _compared(self, other: StoredTexts) -> float | None:
        if other.count == self._target.count and other.beginning(len(self._stored)) == self._stored:
            return 1.0
        listed = other.read()
        ours, theirs = set(self._texts), set(listed)
        both = len(ours & theirs)
        sizes = [
            both + sum(_PADDING.fullmatch(text) is None for text in one - another)
            for one, another in ((ours, theirs), (theirs, ours))
        ]
        count = min(len(listed), len(self._texts))
        fits = both >= NEARLY_EQUAL * max(sizes) or listed[:count] == self._texts[:count]
        return both / max(1, sizes[0]) if fits else None

    @functools.cached_property
    def _stored(self) -> bytes:
        return self._target.stored()

    @functools.cached_property
    def _texts(self) -> list[bytes]:
        return self._target.read()
