"""Reads GBNF, llama.cpp's language of grammars, as llama.cpp's parser does."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Sequence
from typing import NoReturn, TypeAlias, Union

_LAST = 0x10FFFF
_HALVES = (0xD800, 0xDFFF)  # the first and last code of halves of surrogate pairs
_MOST_SHOWN = 40  # the most characters of a grammar in an error message
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_TIMES: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_NAME = re.compile(r"[a-zA-Z0-9-]+")
_NUMBER = re.compile(r"[0-9]{1,9}")
_IN_LINE = re.compile(r"(?:[ \t]|\#[^\r\n]*)*")
_SPACE = re.compile(r"(?:[ \t\r\n]|\#[^\r\n]*)*")
_LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_CLASS = re.compile(r"\[(\^?)((?:[^\]\\]|\\.)*)\]", re.DOTALL)
_CHARACTER = re.compile(
    r'\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\\([nrt"\\\[\]-])|([^\\])', re.DOTALL
)
_TOKEN = re.compile(r"!?(?:<\[([0-9]+)\]>|(<[^>]*>))")

Characters: TypeAlias = tuple[tuple[int, int], ...]
"""A character in one of these ranges of code points. A range has its first and its last code point."""
Item: TypeAlias = Union[Characters, int, "Repeated", "Token"]
"""One part of an alternative. An int is the number of a rule that it refers to."""
Way: TypeAlias = list[Item]
"""An alternative: items that follow each other."""
Rule: TypeAlias = list[Way]
"""The alternatives of a rule."""


@dataclasses.dataclass(frozen=True)
class Repeated:
    """An item that comes at least `least` and at most `most` times; None: there is no limit."""

    item: Characters | int | Token | Repeated
    least: int
    most: int | None


@dataclasses.dataclass(frozen=True)
class Token:
    """A token, named by its id or its text; if `is_other`, any token but this one."""

    named: int | str
    is_other: bool


class Reader:
    """Reads the rules of a grammar. Groups in parentheses become rules without names.

    Args:
        text: the grammar.

    Attributes:
        rules: the alternatives of each rule, by its number.
        numbers: the numbers of rules, by name.

    Raises:
        ValueError: the text is no GBNF. The message names the rule and the line.
    """

    def __init__(self, text: str) -> None:
        self.rules: list[Rule] = []
        self.numbers: dict[str, int] = {}
        self._text, self._at, self._rule = text, 0, ""
        self._groups: set[int] = set()
        self._places: dict[str, int] = {}  # by the name of a rule: the place in the text where the name comes first
        self._skip(_SPACE)
        defined = set()
        while self._here():
            defined.add(self._read_rule())
        for name in self.numbers.keys() - defined:
            line = self._line(self._places[name])
            raise ValueError(f"the grammar's line {line} names a rule {name!r:.100}, which it does not define")

    def _read_rule(self) -> str:
        name = self._rule = self._take(_NAME, "the name of a rule")[0]
        self._skip(_IN_LINE)
        if not self._text.startswith("::=", self._at):
            self._refuse("expected ::=")
        self._at += 3
        self._skip(_SPACE)
        number = self._number_of(name)
        self.rules[number] = self._alternatives()
        if self._here() not in ("", "\r", "\n"):
            self._refuse("expected a new line")
        self._skip(_SPACE)
        return name

    def _alternatives(self) -> Rule:
        """The alternatives of a rule, up to its end. Groups may be nested as deep as memory allows."""
        outer: list[Rule] = []
        rule: Rule = [[]]
        size = 0  # how many of the last items a repetition operator here would repeat
        while one := self._here():
            if one == "|":
                self._step()
                rule.append([])
                size = 0
            elif one == "(":
                self._step()
                outer.append(rule)
                rule, size = [[]], 0
            elif one == ")" and outer:
                group = self._new(self._folded(rule))
                self._groups.add(group)
                rule, size = outer.pop(), 1
                rule[-1].append(group)
                self._step(bool(outer))
            elif one in "*+?{":
                items = self._repeated(rule[-1], size, bool(outer))
                rule[-1][len(rule[-1]) - size :] = items
                size = len(items)
            else:
                found = self._items(one)
                if found is None:
                    break
                rule[-1] += found
                size = len(found)
                self._skip(_SPACE if outer else _IN_LINE)
        if outer:
            self._refuse("expected )")
        return rule

    def _items(self, one: str) -> Way | None:
        """The items that begin here, with the character `one`; None if the rule ends here."""
        if one == '"':
            return [_character(each) for each in self._codes(self._take(_LITERAL, 'a closing "'), 1)]
        if one == "[":
            return self._class(self._take(_CLASS, "a closing ]"))
        if one == ".":
            self._at += 1
            return [_others([])]
        if one in "<!":
            found = self._take(_TOKEN, "a token, as <[id]> or <text>")
            return [Token(int(found[1]) if found[1] else found[2], found[0][0] == "!")]
        return [self._number_of(self._take(_NAME, "a name")[0])] if _NAME.match(one) else None

    def _class(self, found: re.Match[str]) -> Way:
        codes, dashes = self._codes(found, 2), [each[0] == "-" for each in _CHARACTER.finditer(found[2])]
        ranges, at = [], 0
        while at < len(codes):
            is_range = at + 2 < len(codes) and dashes[at + 1]
            ranges.append((codes[at], codes[at + 2] if is_range else codes[at]))
            at += 3 if is_range else 1
        if not ranges:  # an empty class, which for llama.cpp is the empty text
            return []
        return [_others(ranges) if found[1] else _real(ranges)]

    def _codes(self, found: re.Match[str], group: int) -> list[int]:
        """The code points of the characters in a literal or a class, with escapes resolved."""
        codes, at = [], found.start(group)
        while at < found.end(group):
            one = _CHARACTER.match(self._text, at, found.end(group))
            if one is None:
                self._at = at
                self._refuse("no such escape in GBNF")
            at = one.end()
            number = one[1] or one[2] or one[3]
            codes.append(int(number, 16) if number else ord(_ESCAPES.get(one[4], one[4]) if one[4] else one[5]))
        return codes

    def _repeated(self, way: Way, size: int, in_group: bool) -> Way:
        least, most = self._times(in_group)
        if not size:
            self._refuse("there is nothing to repeat before this")
        if most is not None and most < least:
            self._refuse(f"this repeats at least {least} and at most {most} times: swap the two")
        items = way[len(way) - size :]
        item = items[0] if size == 1 else self._new([items])
        inner = self._ways(item)
        if (least, most) == (0, 1) and len(inner) == 1 and len(inner[0]) == 1:
            only = inner[0][0]
            if isinstance(only, Repeated) and only.least == 1:
                return [dataclasses.replace(only, least=0)]
        return [] if most == 0 else [Repeated(item, least, most)]

    def _folded(self, rule: Rule) -> Rule:
        """A group's rule. llama_cpp writes a{0,3} as (a (a (a)?)?)?, even hundreds deep: it becomes one `Repeated`."""
        last = rule[0][-1] if len(rule) == 1 and rule[0] else None
        if isinstance(last, Repeated) and last.least == 0 and last.most and self._ways(last.item) == [rule[0][:-1]]:
            return [[Repeated(last.item, 1, last.most + 1)]]
        return rule

    def _ways(self, item: Item) -> Rule:
        """The alternatives of an item that is a group; for any other item, one alternative with the item alone."""
        return self.rules[item] if isinstance(item, int) and item in self._groups else [[item]]

    def _times(self, in_group: bool) -> tuple[int, int | None]:
        operator = self._here()
        self._step(in_group)
        if operator in _TIMES:
            return _TIMES[operator]
        least = self._number(in_group)
        most: int | None = least
        if self._here() == ",":
            self._step(in_group)
            most = self._number(in_group) if _NUMBER.match(self._here()) else None
        if self._here() != "}":
            self._refuse("expected }")
        self._step(in_group)
        return least, most

    def _number(self, in_group: bool) -> int:
        number = int(self._take(_NUMBER, "a number")[0])
        self._skip(_SPACE if in_group else _IN_LINE)
        return number

    def _number_of(self, name: str) -> int:
        if name not in self.numbers:
            self.numbers[name] = self._new([])
            self._places[name] = self._at
        return self.numbers[name]

    def _new(self, rule: Rule) -> int:
        self.rules.append(rule)
        return len(self.rules) - 1

    def _here(self) -> str:
        return self._text[self._at : self._at + 1]

    def _step(self, in_group: bool = True) -> None:
        self._at += 1
        self._skip(_SPACE if in_group else _IN_LINE)

    def _skip(self, blanks: re.Pattern[str]) -> None:
        found = blanks.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _take(self, wanted: re.Pattern[str], name: str) -> re.Match[str]:
        found = wanted.match(self._text, self._at)
        if found is None:
            self._refuse(f"expected {name}")
        self._at = found.end()
        return found

    def _line(self, place: int) -> int:
        return self._text.count("\n", 0, place) + 1

    def _refuse(self, reason: str) -> NoReturn:
        rule = f"rule {self._rule!r:.100}, " if self._rule else ""
        here = self._text[self._at : self._at + _MOST_SHOWN]
        raise ValueError(f"the grammar's {rule}line {self._line(self._at)}: {reason}, at {here!r}")


@functools.lru_cache(maxsize=4096)
def _character(code: int) -> Characters:
    return _real([(code, code)])


def _real(ranges: Sequence[tuple[int, int]]) -> Characters:
    """The ranges without codes that no text has: the null character, and halves of surrogate pairs."""
    found = []
    for first, last in ranges:
        for low, high in ((max(first, 1), min(last, _HALVES[0] - 1)), (max(first, _HALVES[1] + 1), min(last, _LAST))):
            if low <= high:
                found.append((low, high))
    return tuple(found)


def _others(ranges: Sequence[tuple[int, int]]) -> Characters:
    """All characters but those in these ranges."""
    found, at = [], 0
    for first, last in sorted(each for each in ranges if each[0] <= each[1]):
        if first > at:
            found.append((at, first - 1))
        at = max(at, last + 1)
    return _real([*found, (at, _LAST)])
