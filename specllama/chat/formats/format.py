"""The description of a form in which models write calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
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
        """Add a rule with the body that `write` returns, and return its name. With a key it is added only once.

        Such a rule may use itself.
        """


@dataclasses.dataclass(frozen=True)
class Written:
    """How calls are written, for making a grammar.

    Attributes:
        before: a function from the tool's name to the text before the arguments.
        after: the text after the arguments.
        begin: the text before the first call.
        end: the text after the last call.
        between: the text between two calls; None if there is only one call.
        trigger: the beginning of the first call, if such a text always begins a call; else empty.
        bare: a function from the tool's name to another text before the arguments, as small models write it. The
            arguments and a closing brace follow this text. None if there is no such text.
        bare_behind: the texts after which `bare` begins a call. At the start of an answer `bare` always begins one.
        arguments: a function from the schema of the parameters to the grammar of the arguments; None if they are JSON.
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
        is_in: whether a chat template teaches this form.
        openings: the texts that begin a call, each with a function that gets this text and reads what follows it.
        marks: other texts of the form that may be special tokens. They are read, and not shown.
        at_start: reads calls at the start of an answer that have no opening; None if there are no such calls.
        written: how calls are written; None if calls of this form cannot be forced.
        thoughts: the texts before and after a thought, if they are not in `thinking.THOUGHTS`.
        answer: the text that begins an answer without calls; empty if it has no mark.
        says: writes the names and arguments of calls as text, for chat templates that have the calls of earlier
            messages in their texts; None if no template does so.
    """

    name: str
    is_in: Callable[[str], bool]
    openings: Mapping[str, Callable[[Reading, str], Parsing[None]]]
    marks: Pieces = ()
    at_start: Callable[[Reading], Parsing[None]] | None = None
    written: Written | None = None
    thoughts: tuple[Pieces, Pieces] | None = None
    answer: Pieces = ()
    says: Callable[[Sequence[tuple[str, Any]]], str] | None = None
