"""Follows a text with a matcher of llguidance, and goes back to earlier places of the text."""

from __future__ import annotations

from llguidance import LLMatcher


class Follower:
    """A matcher at the end of a text, which can go back.

    Matchers of llguidance can go back by themselves. But since 1.5.1 a matcher keeps its last mask, and going back does
    not drop this mask: a place in another continuation of the text could get it, too. So this class goes back by
    copying a second matcher, which has never computed a mask and stands at the last place that was gone back to.

    Args:
        first: a matcher at the beginning of the text, which has computed no mask. It is copied, and stays as it is.

    Attributes:
        matcher: the matcher at the end of the text. It is another object after going back.
    """

    def __init__(self, first: LLMatcher) -> None:
        self.matcher = first.deep_copy()
        self._first, self._behind, self._num_behind = first, first.deep_copy(), 0
        self._tokens: list[int] = []

    def __len__(self) -> int:
        """How many tokens the matcher has followed."""
        return len(self._tokens)

    def follow(self, token: int) -> bool:
        """Follow a token. Returns whether the token may come next. If not, the matcher stays where it is."""
        followed: bool = self.matcher.try_consume_tokens([token]) == 1
        if followed:
            self._tokens.append(token)
        return followed

    def back_to(self, count: int) -> None:
        """Go back to the place after the first `count` tokens. Does nothing if no more tokens were followed."""
        if count >= len(self._tokens):
            return
        if count < self._num_behind:
            self._behind, self._num_behind = self._first.deep_copy(), 0
        self._behind.consume_tokens(self._tokens[self._num_behind : count])
        self._num_behind = count
        self.matcher = self._behind.deep_copy()
        del self._tokens[count:]
