"""Has llguidance enforce JSON schemas: the whole schema, or an error that says why not."""

from __future__ import annotations

import contextlib
import functools
import json
from typing import Any

from llama_cpp.llama_grammar import LlamaGrammar
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from .in_llguidance import in_llguidance
from .schema_limits import schemas, too_much_for_matcher

_LONGEST_REASON = 200  # characters; the reason quotes the schema, at its beginning or its end
# At most one blank is allowed, after a comma or a colon. If blanks were allowed anywhere, llguidance would allow any
# number of them, whatever the pattern is, and a model could write blanks until its tokens are used up.
# A schema's own "x-guidance" does not change these options.
_OPTIONS: Any = {
    "whitespace_flexible": False,
    "whitespace_pattern": None,
    "item_separator": ", ?",
    "key_separator": ": ?",
    "lenient": False,
    "coerce_one_of": False,
}
# An object with 500 optional properties may go on in 2000 ways, which is the default limit. A list of 100,000 values
# takes 25 times as much fuel as the default. Work is limited separately.
LIMITS = LLParserLimits(max_items_in_row=50_000, initial_lexer_fuel=30_000_000)
_BYTES = LLTokenizer("byte")  # the smallest vocabulary, which is enough to find out whether a schema can be followed
_COMBINING = ("anyOf", "oneOf", "allOf", "$ref", "properties")  # if several are there, no one alone has all properties
_OTHERS = ("additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames", "minProperties")


class NotEnforcedError(ValueError):
    """Raised if llguidance cannot enforce a schema. The message says why."""


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

    Objects have the properties that the schema names. They have others only if the schema says so, because a model
    could add properties forever. llama_cpp's grammars of schemas allow no others either.

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
    """Why a matcher has stopped at a place where the text may not end."""
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
    if matcher.is_stopped() or warnings:  # after an error, too
        raise NotEnforcedError(f"llguidance says: {_cut('; '.join(warnings)) or reason_of(matcher)}")
    return grammar


def _cut(message: str) -> str:
    """A message in one line, cut to a length. All lines are kept but carets, which mark a place in the line above."""
    text = ascii(" ".join(word for word in message.split() if word.strip("^")))[1:-1]
    half = _LONGEST_REASON // 2
    return text if len(text) <= _LONGEST_REASON else f"{text[:half]} ... {text[-half:]}"


def _close(schema: dict[str, Any]) -> bool:
    """Close the objects in a schema: they get no other properties. Returns whether there are any.

    If several schemas apply to one object, they are left as they are: one may require what another does not name.
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
