"""Translates a GBNF grammar into llguidance's language (Lark), so that it allows the same texts as in llama.cpp.

llguidance divides a text into lexemes, and always takes the longest lexeme that fits; llama.cpp follows every reading.
Both allow the same texts if each lexeme is one character, or the whole text. So a grammar whose rules do not refer to
themselves becomes one regular expression, and any other grammar becomes rules of single characters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

from .components import components
from .gbnf import Characters, Item, Reader, Repeated, Rule, Token, Way

_MOST_DEEP = 300  # the most rules nested in each other: llguidance recurses, and 400 need a stack of 1 MB
_MOST_GROUPS = 40  # the most groups nested in each other in a regular expression
_LONGEST = 1_000_000  # the most characters of all rules' regular expressions together
_MOST_STATES = 10_000  # the most rules that are added to replace one circle of right-recursive rules
_NEVER: Characters = ((0, 0),)  # the null character, which no token writes
_OPTIONS = '%llguidance {"no_forcing": true}\n'  # else llguidance allows one token where one text may follow


def in_lark(text: str, root: str, token: Callable[[str], int]) -> str:
    """Translate a GBNF grammar into the language of llguidance.

    Args:
        text: the grammar.
        root: the name of the rule with which the grammar begins.
        token: gives the id of a token that the grammar names as <text>. Raises ValueError if there is no such token.

    Raises:
        ValueError: the text is no GBNF, or nests its rules too deep.
    """
    reader = Reader(text)
    if root not in reader.numbers:
        raise ValueError(f"the grammar has no rule {root!r:.100}, with which it must begin")
    first = reader.numbers[root]
    rules = _with_loops(reader.rules, first)
    order = _order(rules, first)
    regex = _as_regex(rules, order)
    if regex is not None:
        return f"{_OPTIONS}start: " + (f"/{regex}/" if regex else '""')
    if max(_depth(rules, first, step) for step in (1, -1)) > _MOST_DEEP:
        raise ValueError(
            f"the grammar has rules or parentheses in each other more than {_MOST_DEEP} deep, for which "
            "llguidance's stack may not suffice: put them into fewer rules"
        )
    lines = (f"r{number}: {_alternatives(rules[number], token)}" for number in order)
    return f"{_OPTIONS}start: r{first}\n" + "\n".join(lines)


def _rule_in(item: Item) -> int | None:
    """The number of the rule to which an item refers; None if it refers to no rule."""
    while isinstance(item, Repeated):
        item = item.item
    return item if isinstance(item, int) else None


def _uses(rule: Rule) -> Iterator[int]:
    return (number for way in rule for item in way if (number := _rule_in(item)) is not None)


def _with_loops(rules: Sequence[Rule], first: int) -> list[Rule]:
    """The rules with left recursion or repetition in place of right recursion, whose time grows with the text's square.

    Rules that end with each other in a circle are the states of an automaton. They are turned around: for each state,
    a new rule gives the texts that lead from the entry to this state.
    """
    rules = [[ending for way in rule for ending in _endings(way)] for rule in rules]
    tails = [[way[-1] for way in rule if way and isinstance(way[-1], int)] for rule in rules]
    made: dict[int, Rule] = {}
    circles = [
        members for members in components(tails) if any(tail in members for one in members for tail in tails[one])
    ]
    circle_of = {one: members for members in circles for one in members}
    begun = {first}
    for number, rule in enumerate(rules):
        for way in rule:
            inner = way[:-1] if way and way[-1] in circle_of.get(number, ()) else way
            begun |= set(_uses([inner]))
    for members in circles:
        entries = members & begun
        for entry in entries if len(entries) * len(members) <= _MOST_STATES else ():
            made[entry] = _automaton(rules, members, entry)
    for entry, rule in made.items():
        rules[entry] = rule
    return rules


def _endings(way: Way) -> list[Way]:
    """The alternative itself; two alternatives, with and without its last item, if that item is an optional rule."""
    last = way[-1] if way else None
    if isinstance(last, Repeated) and isinstance(last.item, int) and (last.least, last.most) == (0, 1):
        return [way[:-1], [*way[:-1], last.item]]
    return [way]


def _automaton(rules: list[Rule], members: set[int], entry: int) -> Rule:
    """The alternatives of a rule by which a circle is entered. Adds, for each member, a rule of the texts before it."""
    if len(members) == 1:
        turns = [way[:-1] for way in rules[entry] if way and way[-1] == entry and len(way) > 1]
        rules.append(turns)
        loop: Way = [Repeated(len(rules) - 1, 0, None)] if turns else []
        return [[*loop, *way] for way in rules[entry] if not (way and way[-1] == entry)] or [[*loop, _NEVER]]
    before = {one: len(rules) + place for place, one in enumerate(members)}
    rules.extend([] for _ in members)
    rules[before[entry]].append([])
    ends = []
    for one in members:
        for way in rules[one]:
            if way and way[-1] in members:
                rules[before[way[-1]]].append([before[one], *way[:-1]])
            else:
                ends.append([before[one], *way])
    return ends or [[before[one], _NEVER] for one in members]


def _order(rules: Sequence[Rule], first: int) -> list[int]:
    """The rules that the first rule needs. Each comes after the rules that it refers to, except in a circle."""
    needed, waiting = {first}, [first]
    while waiting:
        for number in set(_uses(rules[waiting.pop()])) - needed:
            needed.add(number)
            waiting.append(number)
    uses = [sorted(set(_uses(rule))) if number in needed else [] for number, rule in enumerate(rules)]
    return [one for members in components(uses) for one in members & needed]


def _depth(rules: Sequence[Rule], first: int, step: int) -> int:
    """How deep rules are nested. References in a rule are followed from the first on (step 1) or from the last (-1)."""
    seen, deepest = {first}, 1
    path = [iter([*_uses(rules[first])][::step])]
    while path:
        number = next((each for each in path[-1] if each not in seen), None)
        if number is None:
            path.pop()
        else:
            seen.add(number)
            path.append(iter([*_uses(rules[number])][::step]))
            deepest = max(deepest, len(path))
    return deepest


def _as_regex(rules: Sequence[Rule], order: Sequence[int]) -> str | None:
    """The last rule in `order` as one regular expression; None if there is none, or it is too long or too deep."""
    known: dict[int, tuple[str, int]] = {}  # by rule: its expression, and the depth of its groups
    length = 0

    def of(item: Item) -> tuple[str, int] | None:
        if isinstance(item, Repeated):
            inner = of(item.item)
            return (f"(?:{inner[0]}){_times(item)}", inner[1] + 1) if inner and inner[0] else inner
        if isinstance(item, int):
            return known.get(item)
        return None if isinstance(item, Token) else (_characters(item), 0)

    for number in order:
        ways: dict[str, int] = {}
        for way in rules[number]:
            parts = [of(item) for item in way]
            if None in parts:
                return None
            ways["".join(part[0] for part in parts if part)] = max((part[1] for part in parts if part), default=0)
        text = next(iter(ways)) if len(ways) == 1 else f"(?:{'|'.join(ways)})"
        known[number] = text, max(ways.values()) + (len(ways) > 1)
        length += len(text)
        if length > _LONGEST or known[number][1] > _MOST_GROUPS:
            return None
    return known[order[-1]][0]


def _alternatives(rule: Rule, token: Callable[[str], int]) -> str:
    return "\n | ".join(dict.fromkeys(" ".join(_written(item, token) for item in way) or '""' for way in rule))


def _written(item: Item, token: Callable[[str], int]) -> str:
    if isinstance(item, Repeated):
        inner = _written(item.item, token)
        return (f"({inner})" if isinstance(item.item, Repeated) else inner) + _times(item)
    if isinstance(item, Token):
        number = token(item.named) if isinstance(item.named, str) else item.named
        return f"<[{'^' if item.is_other else ''}{number}]>"
    return f"r{item}" if isinstance(item, int) else f"/{_characters(item)}/"


def _times(item: Repeated) -> str:
    simple = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((item.least, item.most))
    return simple or f"{{{item.least},{'' if item.most is None else item.most}}}"


@functools.lru_cache(maxsize=4096)
def _characters(ranges: Characters) -> str:
    """The regular expression of one character in one of these ranges."""
    parts = [_code(first) if first == last else f"{_code(first)}-{_code(last)}" for first, last in ranges or _NEVER]
    return parts[0] if len(parts) == 1 and "-" not in parts[0] else f"[{''.join(parts)}]"


def _code(code: int) -> str:
    one = chr(code)
    return one if one.isascii() and (one.isalnum() or one == " ") else f"\\x{{{code:x}}}"
