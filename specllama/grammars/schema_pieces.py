"""A vocabulary in which some texts cannot be written, as llguidance asks of it."""

from __future__ import annotations

from collections.abc import Sequence


class SchemaPieces:
    """Takes the longest token that fits, which need not be the model's way: llguidance guesses by it, no more."""

    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes], end: int) -> None:
        """Takes what each token adds to a text, and the one that ends a text."""
        self.tokens = tokens
        self.eos_token_id = end
        self.special_token_ids = (end,)
        self._known = {piece: token for token, piece in enumerate(tokens) if piece[:1] != b"\xff"}
        self._longest = max(map(len, self._known), default=0)

    def __call__(self, text: bytes) -> list[int]:
        """The tokens of a text, up to what none of them has."""
        found = []
        while text:
            sizes = range(min(self._longest, len(text)), 0, -1)
            size = next((size for size in sizes if text[:size] in self._known), 0)
            if not size:
                break
            found.append(self._known[text[:size]])
            text = text[size:]
        return found
