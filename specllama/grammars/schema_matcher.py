"""JSON schemas that llguidance enforces, where it is installed (the extra ``schemas``)."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from llama_cpp.llama_grammar import LlamaGrammar

from .schema_closed import closed_schema
from .schema_limits import too_much_for_matcher

if TYPE_CHECKING:
    from collections.abc import Callable

_LONGEST_REASON = 200  # characters: it quotes the schema
_NUM_BYTES = 256
# At most one blank, behind a comma or a colon. Where llguidance may put blanks anywhere, it takes any number of them,
# whatever the pattern for one is, and a model may go on with them until its tokens are used up.
# A schema's own "x-guidance" changes none of it.
_OPTIONS = {
    "whitespace_flexible": False,
    "whitespace_pattern": None,
    "item_separator": ", ?",
    "key_separator": ": ?",
    "lenient": False,
    "coerce_one_of": False,
}


class NotEnforcedError(ValueError):
    """Llguidance cannot enforce a schema. Says why."""


class SchemaGrammar(LlamaGrammar):
    """A JSON schema that llguidance enforces. To whoever knows llama_cpp's grammars it is the one made by llama_cpp."""

    def __init__(self, gbnf: str, matched: str) -> None:
        super().__init__(_grammar=gbnf)
        self.matched = matched
        """llguidance's grammar."""


class SchemaMatcher:
    """Says what may come next, by llguidance's matcher, which goes along with the text, and back."""

    def __init__(self, matcher: Any, ends: frozenset[int]) -> None:
        self._matcher = matcher
        self._ends = ends
        self._steps = np.empty(0, dtype=np.intc)
        self._followed: list[bool] = []  # else the matcher passed it over: the end of a text, or a caller's own token

    def __call__(self, recent: npt.NDArray[np.intc]) -> tuple[bytes, bool, int]:
        """What may come behind the tokens generated so far.

        Returns:
            A bit for each token, the lowest first; whether the text may end; the token that begins the only text that
            may come next, or -1.

        Raises:
            ValueError: nothing may come next, or finding out would take too long.
        """
        self._go_behind(recent)
        matcher = self._matcher
        mask: bytes = matcher.compute_bitmask()
        may_end: bool = matcher.is_accepting()
        forced = matcher.compute_ff_tokens()
        if matcher.is_error() or (matcher.is_stopped() and not may_end):
            raise ValueError(f"the JSON schema cannot be followed any further ({_reason(matcher)}): simplify it")
        return mask, may_end, forced[0] if forced else -1

    def _go_behind(self, recent: npt.NDArray[np.intc]) -> None:
        both = min(len(recent), len(self._steps))
        different = np.flatnonzero(recent[:both] != self._steps[:both])
        common = int(different[0]) if len(different) else both
        back = sum(self._followed[common:])
        if back:
            self._matcher.rollback(back)
        del self._followed[common:]
        for token in recent[common:].tolist():
            self._followed.append(token not in self._ends and self._matcher.try_consume_tokens([token]) == 1)
        self._steps = recent


def has_matcher() -> bool:
    """Whether llguidance is installed."""
    return importlib.util.find_spec("llguidance") is not None


def matched_schema(text: str) -> str:
    """The grammar by which llguidance enforces a schema, all of it.

    Args:
        text: the schema as JSON.

    Raises:
        NotEnforcedError: it cannot, or is not installed.
    """
    if not has_matcher():
        raise NotEnforcedError('it is not installed: pip install "specllama[schemas]"')
    return _matched(text)


@functools.lru_cache(maxsize=32)
def _matched(text: str) -> str:
    reason = too_much_for_matcher(text)
    if reason is not None:
        raise NotEnforcedError(reason)
    grammar = _checked(text)
    closed = closed_schema(text)
    if closed is None:
        return grammar
    with contextlib.suppress(NotEnforcedError):
        return _checked(closed)
    return grammar


def _checked(text: str) -> str:
    """The grammar of a schema, if there are answers and llguidance passes nothing over."""
    from llguidance import LLMatcher

    try:
        grammar: str = LLMatcher.grammar_from_json_schema(text, overrides=_OPTIONS)
    except ValueError as error:
        raise NotEnforcedError(_cut(str(error))) from None
    matcher = LLMatcher(_tokens_of_bytes(), grammar, log_level=0)
    if not matcher.is_error():
        matcher.compute_bitmask()
    warnings = [] if matcher.is_error() else matcher.get_grammar_warnings()
    if matcher.is_stopped() or warnings:  # after an error, too
        raise NotEnforcedError(_cut("; ".join(warnings)) or _reason(matcher))
    return grammar


def _reason(matcher: Any) -> str:
    error = _cut(matcher.get_error())
    return "no answer would be valid" if error in ("", "NoExtension", "NoExtensionBias") else error


def _cut(message: str) -> str:
    return ascii(message.partition("\n")[0])[1:-1][:_LONGEST_REASON]


@functools.cache
def _tokens_of_bytes() -> Any:
    """The smallest vocabulary: enough to find out whether a schema can be followed."""
    import llguidance

    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()))


class _Bytes:
    """What llguidance asks of a tokenizer."""

    eos_token_id = _NUM_BYTES
    bos_token_id = None
    special_token_ids = (_NUM_BYTES,)
    tokens = (*(bytes([byte]) for byte in range(_NUM_BYTES)), b"<end>")
    __call__: Callable[..., list[int]] = staticmethod(list)
