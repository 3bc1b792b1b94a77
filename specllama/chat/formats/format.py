"""The description of a form in which models write calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Protocol

from .reading import Parsing, Reading

Pieces = tuple[str, ...]
"""A text in pieces. A piece that is a special token of the model is written as that token."""


class Regex(str):
    """A piece that may be any text which matches this regular expression."""

    __slots__ = ()


class Grammar(Protocol):
    """Builds a grammar for llguidance. Its methods return parts of a rule."""

    def text(self, pieces: Pieces) -> str:
        """The part that matches this text."""

    def text_until(self, mark: str) -> str:
        """The part that matches any text up to the first `mark`, and the mark."""

    def schema(self, schema: Any) -> str:
        """The part that matches JSON of a schema."""

    def rule(self, write: Callable[[], str], key: Hashable = None) -> str:
        """Add the rule that `write` gives, and return its name. A rule with a key is added once, and may use itself."""


@dataclasses.dataclass(frozen=True)
class Written:
    """How calls are written, for making a grammar.

    Attributes:
        before: gives the text before the arguments, from the tool's name.
        after: the text after the arguments.
        begin: the text before the first call.
        end: the text after the last call.
        between: the text between two calls; None if there is only one call.
        trigger: the beginning of the first call that always starts a call; empty if there is no such text.
        bare: gives another text before the arguments, as small models write it, from the tool's name. The arguments
            and a brace follow it.
        bare_behind: the texts after which `bare` begins a call. At the start of an answer it always does.
        arguments: gives the grammar of the arguments from the schema of the parameters; None if they are JSON.
    """

    before: Callable[[str], Pieces]
    after: Pieces = ()
    begin: Pieces = ()
    end: Pieces = ()
    between: Pieces | None = ()
    trigger: str = ""
    bare: Callable[[str], str] | None = None
    bare_behind: Pieces = ()
    arguments: Callable[[Mapping[str, Any], Grammar], str] | None = None


@dataclasses.dataclass(frozen=True)
class Format:
    """A form in which models write calls.

    Attributes:
        name: the name of the form.
        is_in: whether a chat template teaches it.
        openings: the texts that begin a call. The function of each reads what follows, and is given the text.
        marks: other texts that may be special tokens. They are read, and not shown.
        at_start: reads an answer that begins with none of the openings; None if there is nothing to read then.
        written: how calls are written; None if calls of this form cannot be forced.
        thoughts: the texts before and after a thought, if they are not in `thinking.THOUGHTS`.
        answer: the text that begins an answer without calls; empty if it has no mark.
    """

    name: str
    is_in: Callable[[str], bool]
    openings: Mapping[str, Callable[[Reading, str], Parsing[None]]]
    marks: Pieces = ()
    at_start: Callable[[Reading], Parsing[None]] | None = None
    written: Written | None = None
    thoughts: tuple[Pieces, Pieces] | None = None
    answer: Pieces = ()
