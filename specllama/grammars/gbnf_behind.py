"""Writes GBNF for a whole text (a thought, then an answer) of which a given grammar describes only the answer."""

from __future__ import annotations

from collections.abc import Sequence

from .behind_thought import Thought

_BLANKS = r"[ \n]{0,4}"
_ANYTHING = r"[^\x00]*"


def gbnf_behind(
    text: str,
    root: str,
    *,
    thought: Thought | None,
    between: str = "",
    opening: str = "",
    others: Sequence[str] = (),
) -> tuple[str, str]:
    """The GBNF of the whole text, and the name of its first rule.

    Args:
        text: the grammar of the answer, in GBNF.
        root: the name of that grammar's first rule.
        thought: the marks of the thought that may come before the answer; None if there can be no thought.
        between: the text between the thought's end and the answer.
        opening: the text that begins the answer.
        others: texts that may come in place of the answer; any text may follow each of them.
    """
    name = "whole"
    while name in text or name == root:
        name += "x"
    answer = [f"{_literal(opening)} {root}", *(f"{_literal(each)} {_ANYTHING}" for each in others)]
    rules = {f"{name}-answer": " | ".join(answer)}
    start = f"{name}-answer"
    if thought is not None:
        rules |= _up_to(thought.end, name, f"{_literal(between)} {_BLANKS} {name}-answer")
        start = f"{name}-0" if thought.is_begun else f"{_literal(thought.begin)} {name}-0 | {name}-answer"
    written = "\n".join(f"{each} ::= {rule}" for each, rule in {name: start, **rules}.items())
    return f"{text}\n{written}", name  # the given grammar comes first, so that error messages name its own line numbers


def _up_to(mark: str, name: str, behind: str) -> dict[str, str]:
    """Rules of any text up to the first `mark`. Rule n applies where the last n characters are the mark's first n."""
    rules = {}
    for number in range(len(mark)):
        ways = {each: _begun(mark[:number] + each, mark) for each in dict.fromkeys(mark)}
        on = {each: count for each, count in ways.items() if count}
        steps = [
            f"{_literal(each)} {behind if count == len(mark) else f'{name}-{count}'}" for each, count in on.items()
        ]
        others = "".join(f"\\U{ord(each):08X}" for each in on)
        rules[f"{name}-{number}"] = " | ".join([*steps, f"[^{others}] {name}-0"])
    return rules


def _begun(text: str, mark: str) -> int:
    """How many characters at the end of a text are a beginning of the mark, at most."""
    return next(size for size in range(min(len(text), len(mark)), -1, -1) if text.endswith(mark[:size]))


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"' if text else ""
