"""Constrains tool calls in a text. All tokens are allowed until a call begins; then the call's grammar is enforced.

A drafted token may begin a call; the drafted tokens after this token then follow the call's grammar.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

import numpy as np
import numpy.typing as npt

from .follower import Follower
from .in_llguidance import in_llguidance
from .schema_matcher import SchemaVocabulary
from .states import States


@dataclasses.dataclass(frozen=True)
class Beginning:
    """A text with which a call begins.

    Attributes:
        text: the text.
        grammar: gives llguidance's grammar of the rest of the call, which follows the text.
        at_start: whether the text begins a call only at the beginning of the answer.
    """

    text: str
    grammar: Callable[[], str]
    at_start: bool = False


@dataclasses.dataclass(frozen=True)
class BegunCalls:
    """The tool calls that an answer may contain. Once a call has begun, its grammar is enforced.

    Attributes:
        beginnings: the texts with which calls begin.
    """

    beginnings: tuple[Beginning, ...]


_Part = Literal["start", "words", "call"]


@dataclasses.dataclass(frozen=True)
class _State:
    """The state at a place in a text."""

    part: _Part
    tail: bytes = b""
    """The last bytes of the text, if they may be the first part of a `Beginning`."""
    run: Follower | None = None
    """Follows the call that was begun; None outside of calls."""
    count: int = 0
    """How many tokens of the call `run` has followed."""


class BegunMatcher:
    """Says which tokens may come next in a text that may contain tool calls. Used for one generation."""

    def __init__(self, vocabulary: SchemaVocabulary, calls: BegunCalls) -> None:
        self._vocabulary = vocabulary
        self._ends = frozenset(vocabulary.ends)
        self._first = {each.text.encode(): each for each in calls.beginnings if each.at_start}
        self._others = {each.text.encode(): each for each in calls.beginnings if not each.at_start}
        self._longest = max(map(len, self._others), default=0)
        self._states = States(_State("start"), self._next)

    def may_begin(self, text: bytes) -> bool:
        """Whether the text may begin with these bytes. Always True, because only calls are constrained."""
        return True

    @in_llguidance()
    def __call__(self, recent: npt.NDArray[np.intc]) -> tuple[bytes, bool, int] | None:
        """Which tokens may follow the tokens generated so far.

        Returns:
            What ``SchemaMatcher`` returns; None if all tokens may follow.
        """
        state = self._states.behind(recent)
        if state.run is None:
            return None
        state.run.back_to(state.count)
        matcher = state.run.matcher
        mask = matcher.compute_bitmask()
        may_end = matcher.is_accepting()
        forced = matcher.compute_ff_tokens()
        if matcher.is_error() or matcher.is_stopped():  # no token can follow, or computing the mask would take too long
            return None
        return (self._vocabulary.widened(mask, matcher) if forced else mask), may_end, forced[0] if forced else -1

    def _next(self, state: _State, token: int, _: int) -> _State:
        if token in self._ends:
            return state
        if state.run is None:
            return self._read(state.part, state.tail + self._vocabulary.name(token))
        state.run.back_to(state.count)
        if not state.run.follow(token):  # a token that is not allowed, which the caller has appended
            return state
        if state.run.matcher.is_stopped():  # the call is complete
            return _State("words")
        return dataclasses.replace(state, count=state.count + 1)

    def _read(self, part: _Part, text: bytes) -> _State:
        """The state after ``text``: the tail of the state before, and the text of the new token."""
        if part == "start":
            words = text.lstrip()
            for mark, beginning in self._first.items():
                if words.startswith(mark):
                    return self._begun(beginning, words[len(mark) :])
            if any(mark.startswith(words) for mark in self._first):
                return _State(part, text)
        places = [(place, mark) for mark in self._others if (place := text.find(mark)) >= 0]
        if not places:
            return _State("words", text[max(0, len(text) - self._longest + 1) :])
        place, mark = min(places)
        return self._begun(self._others[mark], text[place + len(mark) :])

    def _begun(self, beginning: Beginning, behind: bytes) -> _State:
        """The state after a beginning of a call and ``behind``, the rest of the token that completes the beginning."""
        run = Follower(self._vocabulary.first(beginning.grammar()))
        tokens = self._vocabulary.tokens_of(behind)
        # If the rest of the token does not fit the call's grammar, this is no call.
        if run.matcher.is_error() or not all(map(run.follow, tokens)):
            return self._read("words", behind)
        return _State("words") if run.matcher.is_stopped() else _State("call", run=run, count=len(tokens))
