"""Counts in how many ways a grammar reads a run of one character. llama.cpp follows each way separately, to its end.

Vocabularies have tokens of 48 blanks, of 80 dashes, of 20 letters, followed by something else. If that is forbidden,
llama.cpp tries all ways to find out. They are counted as power series: number k of a list says in how many ways k
characters can be read.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .left_corners import Rule, components

_LONGEST = 40  # characters
_SHORT = 16
RUNNING = {**dict.fromkeys(" -=*#/", _LONGEST), **dict.fromkeys("\n\t_.0eE", _SHORT)}
"""The characters of which vocabularies have runs, and how long the tried runs are. e stands for all letters."""
_MOST_WAYS = 1_000_000  # of all characters together; each takes about 1 us
_MOST_PLACES = 1000  # larger numbers count as this one, so that nested rules soon have the same numbers
_MOST_STEPS = 1_000_000  # steps of counting: up to 25 us each

_Series = list[int]


@dataclasses.dataclass(frozen=True)
class Characters:
    """A literal or a class of characters."""

    running: frozenset[str]
    """The characters of ``RUNNING`` that it may consist of."""
    length: int
    """The length of a literal; 1 for a class."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Ways:
    whole: _Series = dataclasses.field(default_factory=list)
    """The ways to read the whole part."""
    begun: _Series = dataclasses.field(default_factory=list)
    """The ways to have come to some place in the part."""
    rest: _Series = dataclasses.field(default_factory=list)
    """The ways to read all that is left of the part after another text; the largest number counts."""
    left: _Series = dataclasses.field(default_factory=list)
    """The ways to have come to some place in this rest."""
    places: int = 0
    """The number of places where the character may be read."""

    def most(self, length: int) -> int:
        """The most ways that llama.cpp may have to follow in a run of this length.

        If there is more than one way, the text before may have led to all places, and llama.cpp goes on from each.
        """
        ambiguous = max([*self.whole[:length], *self.rest[:length]], default=0) > 1
        return max(sum(self.begun[:length]), sum(self.left[:length])) * (self.places if ambiguous else 1)


_NONE = _Ways()


def check_runs(rules: Sequence[Rule], terminals: Sequence[Characters]) -> None:
    """Raise a ValueError for a rule that reads a run of one character in too many ways.

    Args:
        rules: all rules of a grammar.
        terminals: the characters that ~0, ~1, ... stand for in the rules.
    """
    parts = [_Part.of(rule, number) for number, rule in enumerate(rules)]
    order = [
        (members, len(members) > 1 or any(one in items for one in members for items in parts[one].items))
        for members in components([[item for items in part.items for item in items] for part in parts])
    ]
    alike = {
        (length, *(character in one.running for one in terminals)): character for character, length in RUNNING.items()
    }
    for character in alike.values():
        count = _Count(character, parts, [_ways_of_terminal(character in one.running, one.length) for one in terminals])
        for members, recursive in order:
            if recursive:
                count.settle(members)
            count.add(members)


@dataclasses.dataclass(frozen=True)
class _Part:
    """A rule, in the form in which it is counted."""

    name: str
    items: list[list[int]]
    """The alternatives. A repetition without an end is not among its own."""
    least: int
    most: int | None

    @classmethod
    def of(cls, rule: Rule, number: int) -> _Part:
        parts = rule.alternatives
        if len(parts) == 2 and len(parts[0]) == 2 and parts[0][1] == number and not parts[1]:
            return cls(rule.name, [parts[0][:1]], 0, None)
        return cls(rule.name, parts, rule.least, rule.times)


class _Count:
    """Counts the ways to read one character."""

    def __init__(self, character: str, parts: Sequence[_Part], terminals: Sequence[_Ways]) -> None:
        self._character = character
        self._length = RUNNING[character]
        self._parts = parts
        self._ways = [_NONE] * len(parts) + [*reversed(terminals)]  # ~i indexes it from the end
        self._known: dict[Any, _Ways] = {}  # by the parts of a rule: large grammars repeat them again and again
        self._steps = 0
        self._equal: dict[Any, _Ways] = {}  # by the numbers in them: of nested rules the outer ones are often equal

    def settle(self, members: set[int]) -> None:
        """Count for rules that refer to themselves or to one another: in each turn for one character more."""
        for _ in range(_LONGEST + 1):
            before = [(self._ways[one].whole, self._ways[one].begun) for one in members]
            for one in members:
                self._ways[one] = dataclasses.replace(self._of(one), rest=[], left=[], places=0)
            if before == [(self._ways[one].whole, self._ways[one].begun) for one in members]:
                break

    def add(self, members: set[int]) -> None:
        """Count for rules that only refer to rules that are counted already."""
        for one in members:
            self._ways[one] = self._of(one)

    def _of(self, number: int) -> _Ways:
        part = self._parts[number]
        made_of = tuple([tuple([self._ways[item] for item in items]) for items in part.items])
        key = (part.least, part.most, made_of)
        found = self._known.get(key)
        if found is None:
            if part.most == 1:
                found = self._of_alternatives(collections.Counter(made_of))
            else:
                found = _ways_of_repetition(made_of[0][0], part)
            if found.most(self._length) > _MOST_WAYS:
                raise ValueError(
                    f"the grammar's rule {part.name!r:.100} can read {self._character!r} {self._length} times in more "
                    f"than {_MOST_WAYS} ways, and llama.cpp follows each: do not repeat what repeats the same by itself"
                )
            found = dataclasses.replace(found, places=min(found.places, _MOST_PLACES))
            numbers = tuple(map(tuple, (found.whole, found.begun, found.rest, found.left))), found.places
            found = self._known[key] = self._equal.setdefault(numbers, found)
        return found

    def _of_alternatives(self, parts: Mapping[tuple[_Ways, ...], int]) -> _Ways:
        """The ways of alternatives. Each is given with how often it comes, because in lists of words most are alike."""
        found = _Ways()
        for items, times in parts.items():
            self._steps += 1 + len(items)
            if self._steps > _MOST_STEPS:
                raise ValueError(
                    f"the grammar has more than {_MOST_STEPS} different elements: repeat what comes again by {{n}}, or "
                    "give it a name"
                )
            more = _ways_of_sequence(items)
            found = _Ways(
                _plus(found.whole, _times([times], more.whole)),
                _plus(found.begun, _times([times], more.begun)),
                _most(found.rest, more.rest),
                _most(found.left, more.left),
                found.places + times * more.places,
            )
        found.whole[:1] = [min(1, count) for count in found.whole[:1]]  # llama.cpp follows a way without text only once
        return found


@functools.cache
def _ways_of_terminal(runs: bool, length: int) -> _Ways:
    return _Ways([0] * length + [1], [1] * length, places=length) if runs else _Ways([], [1])


def _ways_of_sequence(items: Sequence[_Ways]) -> _Ways:
    found = _Ways(whole=[1])
    for one in reversed(items):
        found = _Ways(
            _times(one.whole, found.whole),
            _plus(one.begun, _times(one.whole, found.begun)),
            _most(found.rest, _most(found.whole, _times(one.rest, found.whole))),
            _most(found.left, _most(found.begun, _plus(one.left, _times(one.rest, found.begun)))),
            found.places + one.places,
        )
    return found


def _ways_of_repetition(one: _Ways, part: _Part) -> _Ways:
    may_be_empty = one.whole[:1] == [1]
    if part.most is None:
        turns = _powers([0, *one.whole[1:]], _LONGEST + 1)[1]
        whole = turns
    else:
        every, turns = _powers(one.whole, part.most)
        optional = _powers(one.whole, part.most - part.least + 1)[1]
        whole = every if may_be_empty else _times(_powers(one.whole, part.least)[0], optional)
    rest = _times(_most(one.rest, [1]), turns)
    left = _plus(one.left, _times(rest, one.begun))
    return _Ways(whole, _times(one.begun, turns), rest, left, one.places * (part.most or 1))


def _powers(series: _Series, count: int) -> tuple[_Series, _Series]:
    """The power of a series, and the sum of all lower powers."""
    power, total = [1], list[int]()
    for bit in f"{count:b}":
        power, total = _times(power, power), _plus(total, _times(power, total))
        if bit == "1":
            power, total = _times(power, series), _plus([1], _times(series, total))
    return power, total


def _times(first: _Series, second: _Series) -> _Series:
    if not first or not second:
        return []
    product = [0] * min(len(first) + len(second) - 1, _LONGEST + 1)
    for i, count in enumerate(first):
        if count:
            for j, other in enumerate(second[: len(product) - i]):
                product[i + j] += count * other
    return product


def _plus(first: _Series, second: _Series) -> _Series:
    return list(itertools.starmap(operator.add, _side_by_side(first, second)))


def _most(first: _Series, second: _Series) -> _Series:
    return list(itertools.starmap(max, _side_by_side(first, second)))


def _side_by_side(first: _Series, second: _Series) -> Iterator[tuple[int, int]]:
    return itertools.zip_longest(first, second, fillvalue=0)
