"""Strongly connected components: which rules of a grammar refer to each other in a circle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def components(leads_to: Sequence[Sequence[int]]) -> Iterator[set[int]]:
    """The strongly connected components, each after the components that it leads to (Tarjan 1972, without recursion).

    Args:
        leads_to: for each rule, the numbers of the rules that it leads to. Numbers below 0 are ignored.
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
