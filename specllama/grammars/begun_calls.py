"""Constrains calls of tools in a text. Nothing is forbidden until a call begins; then the call's grammar is enforced.

The state of each position is computed from that of the position before, and all states are kept. When drafted tokens
are rejected, their states are dropped. A drafted token may begin a call; the drafted tokens after it follow the call's
grammar.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from .follower import Follower
from .in_llguidance import in_llguidance
from .schema_matcher import SchemaVocabulary


@dataclasses.dataclass(frozen=True)
class Beginning:
    """A text with which a call begins.

    Attributes:
        text: the text.
        grammar: gives llguidance's grammar of what follows the text.
        at_start: whether it begins a call only at the beginning of the answer.
    """

    text: str
    grammar: Callable[[], str]
    at_start: bool = False


@dataclasses.dataclass(frozen=True)
class BegunCalls:
    """Optional calls, which are enforced once they have begun.

    Attributes:
        beginnings: the texts with which calls begin.
        thoughts: the marks around a thought before the answer. Nothing in a thought begins a call.
        is_thinking: whether the prompt has begun a thought.
    """

    beginnings: tuple[Beginning, ...]
    thoughts: tuple[str, str] | None = None
    is_thinking: bool = False


_Part = Literal["thought?", "thought", "start", "words", "call"]


@dataclasses.dataclass(frozen=True)
class _State:
    """The state of a position in a text."""

    part: _Part
    tail: bytes = b""
    """The end of the text, if it may be the first part of a beginning or of a mark."""
    run: Follower | None = None
    """Follows the call that was begun."""
    count: int = 0
    """How many tokens of the call there are."""


class BegunMatcher:
    """Says which tokens may come next in a text that may have calls in it. It is used for one generation."""

    def __init__(self, vocabulary: SchemaVocabulary, calls: BegunCalls) -> None:
        self._vocabulary = vocabulary
        self._ends = frozenset(vocabulary.ends)
        self._first = {each.text.encode(): each for each in calls.beginnings if each.at_start}
        self._others = {each.text.encode(): each for each in calls.beginnings if not each.at_start}
        self._longest = max(map(len, self._others), default=0)
        self._thoughts = None if calls.thoughts is None else tuple(mark.encode() for mark in calls.thoughts)
        part: _Part = "start" if self._thoughts is None else "thought" if calls.is_thinking else "thought?"
        self._steps = np.empty(0, dtype=np.intc)
        self._states = [_State(part)]  # by how many tokens are before

    @in_llguidance()
    def __call__(self, recent: npt.NDArray[np.intc]) -> tuple[bytes, bool, int] | None:
        """Which tokens may follow the tokens generated so far.

        Returns:
            What ``SchemaMatcher`` returns; None if all tokens may follow.
        """
        state = self._behind(recent)
        if state.run is None:
            return None
        state.run.back_to(state.count)
        matcher = state.run.matcher
        mask = matcher.compute_bitmask()
        may_end = matcher.is_accepting()
        forced = matcher.compute_ff_tokens()
        if matcher.is_error() or matcher.is_stopped():  # no token can follow, or finding out would take too long
            return None
        return (self._with_all_tokens(matcher, mask) if forced else mask), may_end, forced[0] if forced else -1

    def _with_all_tokens(self, matcher: LLMatcher, mask: bytes) -> bytes:
        """Widen a mask to all tokens that may come next. If only one text may, llguidance's mask has only one token.

        A model may write a text in other tokens than a tokenizer would.
        """
        wide = bytearray(mask)
        for token in self._vocabulary.along(matcher.compute_ff_bytes()):
            if matcher.validate_tokens([token]) == 1:
                wide[token // 8] |= 1 << token % 8
        return bytes(wide)

    def _behind(self, recent: npt.NDArray[np.intc]) -> _State:
        both = min(len(recent), len(self._steps))
        different = np.flatnonzero(recent[:both] != self._steps[:both])
        common = int(different[0]) if len(different) else both
        del self._states[common + 1 :]
        self._steps = recent
        for token in recent[common:].tolist():
            self._states.append(self._next(self._states[-1], token))
        return self._states[-1]

    def _next(self, state: _State, token: int) -> _State:
        if token in self._ends:
            return state
        if state.run is None:
            return self._read(state.part, state.tail + self._vocabulary.name(token))
        state.run.back_to(state.count)
        if not state.run.follow(token):  # a token that the caller has appended
            return state
        if state.run.matcher.is_stopped():  # the call is complete
            return _State("words")
        return dataclasses.replace(state, count=state.count + 1)

    def _read(self, part: _Part, text: bytes) -> _State:
        """The state after ``text``, which follows what was read before in this part."""
        begin, end = self._thoughts or (b"", b"")
        if part == "thought?":
            words = text.lstrip()
            if words.startswith(begin):
                part, text = "thought", words[len(begin) :]
            elif begin.startswith(words):
                return _State(part, text)
            else:
                part = "start"
        if part == "thought":
            before, found, behind = text.partition(end)
            if not found:
                return _State(part, before[max(0, len(before) - len(end) + 1) :])
            part, text = "start", behind
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
        """The state after the beginning of a call. ``behind``: what the same token has written after the beginning."""
        run = Follower(self._vocabulary.first(beginning.grammar()))
        tokens = self._vocabulary.tokens_of(behind)
        if run.matcher.is_error() or not all(map(run.follow, tokens)):  # it is no call
            return self._read("words", behind)
        return _State("words") if run.matcher.is_stopped() else _State("call", run=run, count=len(tokens))
