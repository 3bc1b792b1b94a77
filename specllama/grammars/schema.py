"""Has llguidance enforce a whole JSON schema, or raises an error that says why it cannot."""

from __future__ import annotations

import contextlib
import functools
import json
from typing import Any

from llama_cpp.llama_grammar import LlamaGrammar
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from .in_llguidance import in_llguidance
from .schema_limits import schemas, too_much_for_matcher

_LONGEST_REASON = 200  # the most characters of a reason from llguidance, which may quote the whole schema
# llguidance's options for schemas. At most one blank is allowed, after a comma or a colon. If blanks were allowed
# anywhere, llguidance would allow any number of them, whatever the pattern is, and a model could write blanks until its
# tokens are used up. A schema's own "x-guidance" does not change these options.
_OPTIONS: Any = {
    "whitespace_flexible": False,
    "whitespace_pattern": None,
    "item_separator": ", ?",
    "key_separator": ": ?",
    "lenient": False,
    "coerce_one_of": False,
}
# Limits above the defaults. An object with 500 optional properties may go on in 2000 ways, the default limit. A list of
# 100,000 values takes 25 times as much fuel as the default. `schema_limits` limits the work.
LIMITS = LLParserLimits(max_items_in_row=50_000, initial_lexer_fuel=30_000_000)
_BYTES = LLTokenizer("byte")  # a vocabulary of single bytes, which is enough to see whether a schema can be followed
_COMBINING = ("anyOf", "oneOf", "allOf", "$ref", "properties")  # with several of these, none alone names all properties
_OTHERS = ("additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames", "minProperties")


class NotEnforcedError(ValueError):
    """Raised if llguidance cannot enforce the whole schema. The message says why."""


class SchemaGrammar(LlamaGrammar):
    """A JSON schema that llguidance enforces. llama_cpp's chat handlers pass it on as a ``LlamaGrammar``."""

    def __init__(self, gbnf: str, matched: str) -> None:
        super().__init__(_grammar=gbnf)
        self.matched = matched
        """llguidance's grammar of the schema."""


@functools.lru_cache(maxsize=32)
@in_llguidance()
def matched_schema(text: str) -> str:
    """The grammar by which llguidance enforces a whole schema.

    Objects may have the properties that the schema names. They may have other properties only if the schema says so,
    because a model could add properties forever. llama_cpp's grammars of schemas allow no other properties either.

    Args:
        text: the schema as JSON.

    Raises:
        NotEnforcedError: there is no such grammar.
    """
    schema = json.loads(text)
    if not isinstance(schema, dict):
        raise NotEnforcedError(f"it is {_cut(text)}: give an object; {{}} allows anything")
    reason = too_much_for_matcher(schema, len(text))
    if reason is not None:
        raise NotEnforcedError(reason)
    grammar = _checked(text)
    if _close(schema):
        with contextlib.suppress(NotEnforcedError):
            return _checked(json.dumps(schema))
    return grammar


def reason_of(matcher: LLMatcher) -> str:
    """Why a matcher has stopped although the text may not end there, in words for messages."""
    error = matcher.get_error()
    is_over = error.partition("\n")[0] in ("", "NoExtension", "NoExtensionBias")
    return "no answer would be valid" if is_over else _cut(error)


def _checked(text: str) -> str:
    """The grammar of a schema, if there are valid answers and llguidance ignores no part of it."""
    try:
        grammar = LLMatcher.grammar_from_json_schema(text, overrides=_OPTIONS)
    except ValueError as error:
        raise NotEnforcedError(f"llguidance says: {_cut(str(error))}") from None
    matcher = LLMatcher(_BYTES, grammar, log_level=0, limits=LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()
    warnings = [] if matcher.is_error() else matcher.get_grammar_warnings()
    if matcher.is_stopped() or warnings:  # is_stopped: also after an error
        raise NotEnforcedError(f"llguidance says: {_cut('; '.join(warnings)) or reason_of(matcher)}")
    return grammar


def _cut(message: str) -> str:
    """A message in one line, cut to a length. Only carets are dropped, which mark a place in the line above."""
    text = ascii(" ".join(word for word in message.split() if word.strip("^")))[1:-1]
    half = _LONGEST_REASON // 2
    return text if len(text) <= _LONGEST_REASON else f"{text[:half]} ... {text[-half:]}"


def _close(schema: dict[str, Any]) -> bool:
    """Forbid, in a schema's objects, all properties that it does not name. Returns whether there are such objects.

    If several schemas apply to one object, nothing is changed: one of them may require a property that only another
    names.
    """
    parts = list(schemas(schema))
    if any(map(_combines_schemas, parts)):
        return False
    open_objects = [part for part in parts if _is_open(part)]
    for part in open_objects:
        part["additionalProperties"] = False
    return bool(open_objects)


def _is_open(part: dict[str, Any]) -> bool:
    properties, required = part.get("properties"), part.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list) or any(name in part for name in _OTHERS):
        return False
    return bool(properties) and all(isinstance(name, str) and name in properties for name in required)


def _combines_schemas(part: dict[str, Any]) -> bool:
    members = part.get("allOf")
    several = isinstance(members, list) and len(members) > 1
    return several or sum(name in part for name in _COMBINING) > 1
