"""What a form of calls is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Protocol

from .reading import Parsing, Reading

Pieces = tuple[str, ...]
"""A text in pieces. One of them that is a token of its own in the model's vocabulary is written as that."""


class Regex(str):
    """A piece that is any text of a regular expression."""

    __slots__ = ()


class Grammar(Protocol):
    """A grammar of llguidance's that is being written."""

    def text(self, pieces: Pieces) -> str:
        """What says that this text is next."""

    def text_until(self, mark: str) -> str:
        """What says that any text is next, up to a mark, which is read with it."""

    def schema(self, schema: Any) -> str:
        """What says that JSON of a schema is next."""

    def rule(self, write: Callable[[], str], key: Hashable = None) -> str:
        """The name of a rule, which is what `write` gives. With a key there is one of it, and it may name itself."""


@dataclasses.dataclass(frozen=True)
class Written:
    """How calls are written, for a grammar.

    Attributes:
        before: what stands before the arguments of a call of that name.
        after: what stands behind them.
        begin: what stands before the first call.
        end: what stands behind the last one.
        between: what stands between two calls; None: there is only one.
        trigger: the text at the beginning of the first call behind which there is nothing else; empty: none is.
        bare: what small models write instead before the arguments of a call of that name, with a brace behind them.
        bare_behind: where that is a call, beside the start of an answer.
        arguments: gives the grammar of arguments from the schema of the parameters; None: they are JSON.
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
        name: what it is called.
        is_in: whether a chat template teaches it.
        openings: what reads on behind each text that begins a call, and is given it.
        marks: other texts that may be tokens of their own, which are read and not shown.
        at_start: what reads an answer that begins without any of these.
        written: how calls are written; None: nothing forces them.
        thoughts: pieces around a thought, if they are none of `thinking.THOUGHTS`.
    """

    name: str
    is_in: Callable[[str], bool]
    openings: Mapping[str, Callable[[Reading, str], Parsing[None]]]
    marks: Pieces = ()
    at_start: Callable[[Reading], Parsing[None]] | None = None
    written: Written | None = None
    thoughts: tuple[Pieces, Pieces] | None = None
