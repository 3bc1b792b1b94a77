"""Constrains the answer behind a thought (the reasoning of a model). The thought itself may be any text.

The text may begin with the mark of a thought, or the prompt may have begun a thought. The answer's constraint applies
from the end of the thought, or from the first token if there is no thought.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from .schema_matcher import SchemaVocabulary
from .states import States

Mask = tuple[bytes, bool, int]
"""The result of a ``SchemaMatcher``: mask, whether the text may end, and the forced token or -1."""


class Matcher(Protocol):
    """Says which tokens may come next in an answer."""

    def __call__(self, recent: npt.NDArray[np.intc]) -> Mask | None:
        """Which tokens may follow the tokens of the answer so far; None: all tokens."""

    def may_begin(self, text: bytes) -> bool:
        """Whether the answer may begin with this text."""


@dataclasses.dataclass(frozen=True)
class Thought:
    """A thought before an answer.

    Attributes:
        begin: the text that begins the thought (its mark).
        end: the text that ends the thought.
        is_begun: whether the prompt has begun the thought.
    """

    begin: str
    end: str
    is_begun: bool


@dataclasses.dataclass(frozen=True)
class _Place:
    """A place in a text.

    Attributes:
        part: the part of the text: ``before`` a thought that may come, in the ``thought``, in the ``answer`` behind the
            thought, or in an answer that has begun ``at once``, without a thought.
        tail: the last bytes of the text, if they may be a part of a mark.
        first: how many tokens come before the answer's first whole token.
        rest: the beginning of the answer, as tokens, that the thought's last token has written behind the mark.
    """

    part: Literal["before", "thought", "answer", "at once"]
    tail: bytes = b""
    first: int = 0
    rest: tuple[int, ...] = ()


class BehindThought:
    """Says which tokens may come next in a thought and in the answer behind it. Used for one generation.

    Args:
        vocabulary: the tokens.
        thought: the marks of the thought.
        at_once: makes the matcher of a text without a thought. It must also allow the mark that begins a thought.
        behind: makes the matcher of the answer behind the thought.
        is_required: whether there must be an answer, so that the text may not end within the thought.
    """

    def __init__(
        self,
        vocabulary: SchemaVocabulary,
        thought: Thought,
        at_once: Callable[[], Matcher],
        behind: Callable[[], Matcher],
        *,
        is_required: bool,
    ) -> None:
        self._vocabulary = vocabulary
        self._ends = frozenset(vocabulary.ends)
        self._begin, self._end = thought.begin.lstrip().encode(), thought.end.encode()
        self._at_once, self._behind = functools.cache(at_once), functools.cache(behind)
        self._is_required = is_required
        self._in_thought = functools.cache(self._mask)
        self._places = States(_Place("thought" if thought.is_begun else "before"), self._next)

    def __call__(self, recent: npt.NDArray[np.intc]) -> Mask | None:
        """Which tokens may follow the tokens generated so far; None: all tokens."""
        place = self._places.behind(recent)
        if place.part == "thought":
            return (self._in_thought(place.tail), False, -1) if self._is_required else None
        if place.part == "answer":
            rest = np.array(place.rest, dtype=np.intc)
            return self._behind()(np.concatenate([rest, recent[place.first :]]))
        return self._at_once()(recent)

    def _mask(self, tail: bytes) -> bytes:
        """The mask in a thought: all tokens but those that end it and add bytes that cannot begin the answer."""
        may_begin = self._behind().may_begin
        across = self._vocabulary.across(self._end, tail)
        return self._vocabulary.free([token for rest in across if not may_begin(rest) for token in across[rest]])

    def _next(self, place: _Place, token: int, number: int) -> _Place:
        if token in self._ends or place.part in ("answer", "at once"):
            return place
        text = place.tail + self._vocabulary.name(token)
        if place.part == "before":
            words = text.lstrip()
            if not words.startswith(self._begin):
                return _Place("before", text) if self._begin.startswith(words) else _Place("at once")
            text = words[len(self._begin) :]
        _, found, rest = text.partition(self._end)
        if found:
            return _Place("answer", first=number, rest=tuple(self._vocabulary.tokens_of(rest)))
        return _Place("thought", _begun(text, self._end))


def _begun(text: bytes, mark: bytes) -> bytes:
    """The longest end of a text that is a beginning of the mark, but not the whole mark."""
    sizes = range(min(len(text), len(mark) - 1), 0, -1)
    return next((mark[:size] for size in sizes if text.endswith(mark[:size])), b"")
