"""Checks what the rules of a grammar may begin with. llama.cpp follows all of these ways at once, before any text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

_MOST_DEEP = 3000  # rules that begin with one another: llama.cpp recurses for each
_MOST_WAYS = 100_000  # ways to begin: llama.cpp compares each with all others, which takes a minute
_MOST_WAYS_REPEATED = 420  # ways if a part that may be empty is repeated: a token takes 0.1 s, and 16 times that at 840
_MOST_STEPS = 100_000_000  # steps of llama.cpp's search for left recursion, which visits rules again and again

_Corner = tuple[int, bool, int]
"""A beginning of a rule: a rule's number, or one below 0 for characters; whether more follows; how much precedes it."""


@dataclasses.dataclass
class Rule:
    """A rule, a group or a repetition."""

    name: str
    """The name of the rule that it is in."""
    alternatives: list[list[int]] = dataclasses.field(default_factory=list)
    """The numbers of rules; numbers below 0 stand for characters."""
    times: int = 1
    """How many rules llama.cpp makes of a repetition; each ends with the next."""
    least: int = 1
    """How often the repeated part has to come at least."""
    again: bool = False
    """Whether the repeated part may come any number of times."""


def check_left_corners(rules: list[Rule], loops: bool = True) -> None:
    """Raise a ValueError for rules that llama.cpp would follow for ever, for too long, or too deep.

    Args:
        rules: all rules of a grammar.
        loops: whether llama.cpp survives a rule that begins with itself, with nothing after that.
    """
    num_rules, empty = len(rules), _may_be_empty(rules)
    rules = [*rules, *_continuations(rules, empty)]
    empty += [False] * (len(rules) - num_rules)
    corners = [list(_corners(rule, empty)) for rule in rules]
    ways, depths = [0] * len(rules), [0] * len(rules)
    steps = 0
    for members in components([[target for target, _, _ in of_rule] for of_rule in corners]):  # nearly always one rule
        name = rules[min(members)].name
        beginnings, turns, deepest = 0, 1, 0
        for one in members:
            branches = 0
            for target, followed, place in corners[one]:
                if target < 0:
                    beginnings += 1
                    deepest = max(deepest, place)
                elif target not in members:
                    beginnings += ways[target]
                    deepest = max(deepest, place + depths[target])
                elif followed or not loops:
                    raise _begins_with_itself(name, followed)
                else:
                    branches += 1
            turns = min(turns * max(1, branches), _MOST_WAYS)
        times = max(_times(rules[one], empty) for one in members)
        num_ways, depth = times * turns * (beginnings + len(members)), times + len(members) - 1 + deepest
        steps += num_ways * times if min(members) < num_rules else 0
        if num_ways > _MOST_WAYS or steps > _MOST_STEPS:
            raise ValueError(
                f"the grammar's rule {name!r:.100} may begin or go on in more than {_MOST_WAYS} ways, and llama.cpp "
                "follows all at once: write a beginning that alternatives share only once, before them"
            )
        if times > 1 and num_ways > _MOST_WAYS_REPEATED:
            raise ValueError(
                f"the grammar's rule {name!r:.100} repeats what may be empty, in more than {_MOST_WAYS_REPEATED} ways, "
                'which llama.cpp would take minutes to follow: write "a"{0,500} in place of ("a"?){500}'
            )
        if depth > _MOST_DEEP:
            raise ValueError(
                f"the grammar's rule {name!r:.100} begins or goes on with a rule that begins with a rule, and so on "
                f"more than {_MOST_DEEP} times, for which llama.cpp's stack may not suffice: put them into fewer rules"
            )
        for one in members:
            ways[one], depths[one] = num_ways, depth


def _begins_with_itself(name: str, followed: bool) -> ValueError:
    if followed:
        return ValueError(
            f"the grammar's rule {name!r:.100} may begin with itself and go on behind it (left recursion), which "
            "llama.cpp would follow for ever: let it begin with something else"
        )
    return ValueError(
        f"the grammar's rule {name!r:.100} may begin with itself, or repeats what may be empty, which this release of "
        "llama-cpp-python would follow for ever: install a later one, or write it so that each turn needs some text"
    )


def _may_be_empty(rules: list[Rule]) -> list[bool]:
    empty = [False] * len(rules)
    users: list[list[list[int]]] = [[] for _ in rules]  # by rule, [owner, items left] of each alternative that has it
    found = []
    for owner, rule in enumerate(rules):
        for alternative in rule.alternatives:
            if not alternative:
                found.append(owner)
            elif min(alternative) >= 0:
                use = [owner, len(alternative)]
                for target in alternative:
                    users[target].append(use)
    while found:
        one = found.pop()
        if empty[one]:
            continue
        empty[one] = True
        for use in users[one]:
            use[1] -= 1
            if use[1] == 0:
                found.append(use[0])
    return empty


def _continuations(rules: list[Rule], empty: list[bool]) -> Iterator[Rule]:
    """The parts after an item that cannot be empty, as rules of their own: llama.cpp follows them at once, too."""
    for rule in rules:
        for alternative in rule.alternatives:
            run: list[int] = []
            for target in alternative:
                run.append(target)
                if target < 0 or not empty[target]:
                    if len(run) > 1:
                        yield Rule(rule.name, [run])
                    run = []
            if len(run) > 1:
                yield Rule(rule.name, [run])


def _corners(rule: Rule, empty: list[bool]) -> Iterator[_Corner]:
    for alternative in rule.alternatives:
        for place, target in enumerate(alternative):
            yield target, rule.again or place + 1 < len(alternative), place
            if target < 0 or not empty[target]:
                break


def _times(rule: Rule, empty: list[bool]) -> int:
    """How many rules of a repetition begin with one another: all of them, if the repeated part may be empty."""
    repeated = rule.alternatives[0][0] if rule.times > 1 else -1
    return rule.times if repeated >= 0 and empty[repeated] else 1


def components(leads_to: list[list[int]]) -> Iterator[set[int]]:
    """The strongly connected components, each after those that it leads to (Tarjan 1972, without recursion).

    Args:
        leads_to: for each rule, the numbers of rules that it leads to. Numbers below 0 lead nowhere.
    """
    order: dict[int, int] = {}
    lowest: dict[int, int] = {}
    path: list[int] = []  # rules whose component is not known yet
    done: set[int] = set()
    for root in range(len(leads_to)):
        if root in order:
            continue
        order[root] = lowest[root] = len(order)
        path.append(root)
        calls = [(root, iter(leads_to[root]))]
        while calls:
            one, rest = calls[-1]
            for target in rest:
                if target < 0:
                    continue
                if target not in order:
                    order[target] = lowest[target] = len(order)
                    path.append(target)
                    calls.append((target, iter(leads_to[target])))
                    break
                if target not in done:
                    lowest[one] = min(lowest[one], order[target])
            else:
                calls.pop()
                if calls:
                    lowest[calls[-1][0]] = min(lowest[calls[-1][0]], lowest[one])
                if lowest[one] == order[one]:
                    members = {path.pop()}
                    while one not in members:
                        members.add(path.pop())
                    done |= members
                    yield members
