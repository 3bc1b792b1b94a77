"""Refuses GBNF that llama.cpp would not survive: its parser and its engine recurse, repeat and branch without a limit.

The reader here accepts a little more than GBNF. Texts that are not GBNF are left to llama.cpp, which reports the error.
"""

from __future__ import annotations

import functools
import re

from .left_corners import Rule, check_left_corners
from .runs import RUNNING, Characters, check_runs

# llama_cpp nests 1000 parentheses for a schema's maxLength=1000, which take half a megabyte of stack. llama.cpp has a
# limit of its own for them, too.
_MOST_NESTED = 1000
_MOST_ELEMENTS = 5_000_000  # characters and names, with repetitions written out: 8 bytes each, in half a dozen copies
_MOST_WRITTEN_OUT = 2000  # repetitions: a recent llama.cpp treats a higher number as no limit
_ELEMENT_BYTES = 8
_MOST_DIGITS = 18  # Python refuses to read thousands of them

# A literal or a class that is not closed goes to the end of the text: looking for its end from each character behind it
# would take forever.
TOKEN = re.compile(
    r"""\#[^\r\n]* | \s+
    | (?P<rule>[a-zA-Z0-9-]+)[ \t]*::=
    | (?P<name>[a-zA-Z0-9-]+)
    | (?P<characters>"(?:[^"\\]+|\\.)*"? | \[(?:[^\]\\]+|\\.)*\]? | !?<[^>]*>? | \.)
    | (?P<repeat>[*+?] | \{(?:[^}\#]+|\#[^\r\n]*)*\}?)
    | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
CHARACTER = re.compile(r"\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}|\\?.", re.DOTALL)
_RANGE = re.compile(rf"({CHARACTER.pattern})(?:-({CHARACTER.pattern}))?", re.DOTALL)
_NOTHING = ('""', "[]", "[^]")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_TIMES = {"*": (0, None), "+": (1, None), "?": (0, 1)}


@functools.lru_cache(maxsize=4)
def check_gbnf(text: str, recent: bool = True) -> None:
    """Raise a ValueError for a grammar on which llama.cpp would crash, hang or take all memory.

    Other grammars pass, also wrong ones. A grammar's ambiguity may grow with the text without a limit, except for texts
    that repeat one character.

    Args:
        text: the grammar.
        recent: whether this llama.cpp survives loops without text, and writes out no repetition of more than 2000.
    """
    reader = _Reader(recent)
    rules = reader.rules_of(text)
    check_left_corners(rules, loops=recent)
    check_runs(rules, list(reader.terminals.values()))


class _Reader:
    """Makes rules of a grammar's text. As in llama.cpp, groups and repetitions are rules of their own."""

    def __init__(self, recent: bool) -> None:
        self._recent = recent
        self._rules = [Rule("", [[]])]  # the first holds what stands before all rules
        self._names: dict[str, int] = {}
        self._open = [0]  # the rule that is being read, and the open groups in it
        self._size = 0  # the number of elements of the last item
        self._num_elements = 0
        self._numbers: dict[str, int] = {}
        self.terminals: dict[str, Characters] = {}
        """By their text in the grammar, the characters that ~0, ~1, ... stand for in the rules."""

    def rules_of(self, text: str) -> list[Rule]:
        for token in TOKEN.finditer(text):
            kind, found = token.lastgroup, token[0]
            if kind == "rule":
                self._begin(token["rule"])
            elif kind == "name":
                self._add(self._named(found), 1)
            elif kind == "characters" and found not in _NOTHING:
                self._add(self._terminal(found), len(CHARACTER.findall(found)))
            elif kind == "repeat":
                self._repeat(found)
            elif found == "(":
                self._begin_group()
            elif found == ")" and len(self._open) > 1:
                self._open.pop()
                self._size = 1
            elif found == "|":
                self._rules[self._open[-1]].alternatives.append([])
        return self._rules

    def _terminal(self, found: str) -> int:
        if found not in self.terminals:
            self._numbers[found] = ~len(self.terminals)
            self.terminals[found] = _characters(found)
        return self._numbers[found]

    def _named(self, name: str) -> int:
        if name not in self._names:
            self._names[name] = self._new(Rule(name))
        return self._names[name]

    def _new(self, rule: Rule) -> int:
        self._rules.append(rule)
        return len(self._rules) - 1

    def _begin(self, name: str) -> None:
        number = self._named(name)
        self._rules[number].alternatives = [[]]
        self._open = [number]

    def _begin_group(self) -> None:
        if len(self._open) > _MOST_NESTED:
            raise ValueError(
                f"the grammar nests more than {_MOST_NESTED} parentheses, for which llama.cpp's stack may not suffice: "
                "give inner groups names as rules of their own; of a JSON schema, lower maxLength and maxItems"
            )
        name = self._rules[self._open[-1]].name
        group = self._new(Rule(name, [[]]))
        self._add(group, 1 + len(name) // _ELEMENT_BYTES)  # llama.cpp makes a name for the group
        self._open.append(group)

    def _add(self, item: int, size: int) -> None:
        self._rules[self._open[-1]].alternatives[-1].append(item)
        self._count(size)
        self._size = size

    def _count(self, num_elements: int) -> None:
        self._num_elements += num_elements
        if self._num_elements > _MOST_ELEMENTS:
            raise ValueError(
                f"the grammar has more than {_MOST_ELEMENTS} elements, each repetition written out as llama.cpp does: "
                "repeat less, or without a limit (*, +)"
            )

    def _repeat(self, operator: str) -> None:
        sequence = self._rules[self._open[-1]].alternatives[-1]
        if not sequence:
            return
        least, most = _TIMES.get(operator) or _times(operator)
        if self._recent and most is not None and most > _MOST_WRITTEN_OUT:
            most = None
        if most is not None and most < least:
            raise ValueError(f"the grammar repeats something at least {least} and at most {most} times: swap the two")
        copies = max(1, least + 1 if most is None else most)
        name = self._rules[self._open[-1]].name
        self._count(copies * (self._size + 3 + len(name) // _ELEMENT_BYTES))
        sequence.append(self._repeated(sequence.pop(), least, most))
        self._size = least * self._size + 1

    def _repeated(self, item: int, least: int, most: int | None) -> int:
        name = self._rules[self._open[-1]].name
        if most is not None:
            alternatives = [[item], *([[]] if least == 0 else [])]
            return self._new(Rule(name, alternatives, times=max(1, most), least=least, again=most > 1))
        endless = self._new(Rule(name))
        self._rules[endless].alternatives = [[item, endless], []]
        if least == 0:
            return endless
        first = item if least == 1 else self._repeated(item, least, least)
        return self._new(Rule(name, [[first, endless]]))


def _characters(found: str) -> Characters:
    """The characters of a literal, a class or a dot. The name of a token has none."""
    if found == ".":
        return Characters(frozenset(RUNNING), 1)
    if found[0] == '"':
        written = CHARACTER.findall(found[1:].removesuffix('"'))
        return Characters(frozenset(RUNNING).intersection(*({_character(one)} for one in written)), len(written))
    if found[0] != "[":
        return Characters(frozenset(), 1)
    without = found.startswith("[^")
    ranges = _RANGE.findall(found[1 + without :].removesuffix("]"))
    bounds = [(_character(first), _character(last or first)) for first, last in ranges]
    members = {one for one in RUNNING if any(first <= one <= last for first, last in bounds)}
    return Characters(frozenset(RUNNING) - members if without else frozenset(members), 1)


def _character(written: str) -> str:
    if written[:2] in ("\\x", "\\u", "\\U") and len(written) > 2:
        return chr(min(int(written[2:], 16), 0x10FFFF))
    return _ESCAPES.get(written[1], written[1]) if len(written) > 1 else written


def _times(braces: str) -> tuple[int, int | None]:
    """The least and the largest number in ``{m}``, ``{m,}`` or ``{m,n}``; None: there is no largest."""
    least, comma, most = re.sub(r"#[^\r\n]*", "", braces).partition(",")
    return _number(least), (_number(most) if re.search(r"\d", most) else None) if comma else _number(least)


def _number(text: str) -> int:
    digits = "".join(re.findall(r"\d", text, re.ASCII)).lstrip("0")
    return int(digits[:_MOST_DIGITS] or 0)
