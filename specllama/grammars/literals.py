"""Writes long lists of texts in GBNF as trees, which have each common beginning once.

llama.cpp follows every alternative separately, with each token of the vocabulary: a list of 5,000 values takes it 0.1 s
a token. In a tree it follows only what may come next.
"""

from __future__ import annotations

import itertools
import re

from .gbnf import CHARACTER, TOKEN

_LEAST = 32  # texts: a shorter list stays as it is
_DEEPEST = 20  # parentheses in one another; llama.cpp's parser recurses. What is deeper stays a list
_CLOSED = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)

_Texts = list[tuple[str, ...]]
"""Texts by their characters, as they are written: an escape is one."""


def with_trees(grammar: str) -> str:
    """The grammar, with trees in place of long lists of texts. It allows the same."""
    if grammar.count("|") < _LEAST:
        return grammar
    tokens = [token for token in TOKEN.finditer(grammar) if not token[0].isspace()]
    made, copied, at = list[str](), 0, 0
    while at < len(tokens):
        end = at + 1
        if _is_text(tokens[at]):
            while end + 1 < len(tokens) and tokens[end][0] == "|" and _is_text(tokens[end + 1]):
                end += 2
        if end - at > 2 * _LEAST:
            # A text at an end of the list may be in a sequence with what is beside it: it stays where it is.
            first = at if at > 0 and _separates(tokens[at - 1], "(") else at + 2
            last = end if end == len(tokens) or _separates(tokens[end], ")") else end - 2
            texts = {tuple(CHARACTER.findall(token[0][1:-1])) for token in tokens[first:last:2]}
            made += [grammar[copied : tokens[first].start()], _tree(sorted(texts))]
            copied = tokens[last - 1].end()
        at = end
    return "".join([*made, grammar[copied:]])


def _is_text(token: re.Match[str]) -> bool:
    return _CLOSED.fullmatch(token[0]) is not None


def _separates(token: re.Match[str], parenthesis: str) -> bool:
    """Whether a token beside a list is in no sequence with it."""
    return token.lastgroup == "rule" or token[0] in ("|", parenthesis)


def _tree(texts: _Texts, depth: int = 0) -> str:
    """The alternatives of texts, which are sorted and differ."""
    if depth == _DEEPEST:
        return " | ".join(map(_written, texts))
    return " | ".join(_branch(list(group), depth) for _, group in itertools.groupby(texts, key=lambda text: text[:1]))


def _branch(texts: _Texts, depth: int) -> str:
    """The alternatives of texts that have the first character in common, or of one text."""
    if len(texts) == 1:
        return _written(texts[0])
    size = _common(texts[0], texts[-1])  # they are sorted, so all others have this beginning, too
    return f"{_written(texts[0][:size])} ({_tree([text[size:] for text in texts], depth + 1)})"


def _common(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    pairs = zip(one, other, strict=False)
    return next((size for size, (left, right) in enumerate(pairs) if left != right), min(len(one), len(other)))


def _written(text: tuple[str, ...]) -> str:
    return f'"{"".join(text)}"'
