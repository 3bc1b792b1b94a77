"""The grammar of values as Gemma writes them: JSON with a mark in place of the quotes of texts, and unquoted keys."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .format import Grammar, Regex

_KEY = Regex(r"[^\s:,<>{}\[\]\"]+")
_OF_JSON = ("integer", "number", "boolean", "null")
_LISTS = ("anyOf", "oneOf")


class Marked:
    """Writes the grammar of a schema's values.

    It does not enforce patterns and lengths of texts, nor several schemas for one value (``allOf``).

    Args:
        schema: the schema of a tool's parameters, in which each ``$ref`` is looked up.
        quote: the mark around texts.
        grammar: the grammar to which rules are added.
    """

    def __init__(self, schema: Mapping[str, Any], quote: str, grammar: Grammar) -> None:
        self._schema = schema
        self._quote = quote
        self._grammar = grammar

    def members(self, schema: Mapping[str, Any]) -> str:
        """The grammar of an object's members, without the braces.

        Members that the schema names are sorted by name, as chat templates write them.
        """
        properties, required = schema.get("properties"), schema.get("required") or ()
        if not isinstance(properties, Mapping) or not properties:
            others = schema.get("additionalProperties", True)
            return "" if others is False else self._several(self._pair(_KEY, others), 0, None)
        keys = [key for key in sorted(properties, key=str.lower) if properties[key] is not False]
        pairs = [(self._pair(key, properties[key]), key not in required) for key in keys]
        return with_separators(pairs, '","', self._grammar)

    def _pair(self, key: str, schema: Any) -> str:
        is_plain = isinstance(key, Regex) or re.fullmatch(_KEY, key)
        return f'{self._grammar.text((key,)) if is_plain else self._exactly(key)} ":" {self._value(schema)}'

    def _value(self, schema: Any) -> str:
        if not isinstance(schema, Mapping):
            return self._any()
        if "const" in schema:
            return self._exactly(schema["const"])
        if isinstance(schema.get("enum"), list):
            return self._one_of(map(self._exactly, schema["enum"]))
        if "$ref" in schema:
            return self._referred(schema["$ref"])
        for name in _LISTS:
            if isinstance(schema.get(name), list):
                return self._one_of(self._value(each) for each in schema[name] if each is not False)
        if isinstance(schema.get("allOf"), list):
            return self._value(schema["allOf"][0]) if len(schema["allOf"]) == 1 else self._any()
        kinds = schema.get("type", "object" if "properties" in schema else None)
        if kinds is None:
            return self._any()
        return self._one_of(self._of_kind(kind, schema) for kind in (kinds if isinstance(kinds, list) else [kinds]))

    def _of_kind(self, kind: str, schema: Mapping[str, Any]) -> str:
        if kind in _OF_JSON:
            return self._grammar.schema({**schema, "type": kind})
        if kind == "array":
            return self._rule(f'"[" {self._items(schema)} "]"')
        if kind == "object":
            return self._rule(f'"{{" {self.members(schema)} "}}"')
        return f"{self._grammar.text((self._quote,))} {self._grammar.text_until(self._quote)}"

    def _items(self, schema: Mapping[str, Any]) -> str:
        low, high = schema.get("minItems") or 0, schema.get("maxItems")
        first = [self._value(each) for each in (schema.get("prefixItems") or ())[:high]]
        more = schema.get("items", True)
        room = None if high is None else high - len(first)
        if more is False or room == 0:
            text = ""
        elif not first:
            return self._several(self._value(more), low, high)
        else:
            text = _times(f'("," {self._value(more)})', low - len(first), room)
        for number in reversed(range(len(first))):
            comma = '"," ' if number else ""
            text = f"{comma}{first[number]} {text}"
            text = text if number < low else f"({text})?"
        return text

    def _several(self, value: str, low: int, high: int | None) -> str:
        """From `low` to `high` values, with commas between them. If `high` is None, there is no limit."""
        named = self._rule(value)
        with_comma = f'("," {named})'
        text = f"{named} {_times(with_comma, low - 1, None if high is None else high - 1)}"
        return text if low else f"({text})?"

    def _referred(self, pointer: Any) -> str:
        found: Any = self._schema
        for part in str(pointer).split("/")[1:]:
            found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
        return self._grammar.rule(lambda: self._value(found), (id(self._schema), pointer))

    def _any(self) -> str:
        def write() -> str:
            kinds = ("number", "boolean", "null", "string", "array", "object")
            return " | ".join(self._of_kind(kind, {}) for kind in kinds)

        return self._grammar.rule(write, ("any", self._quote))

    def _exactly(self, value: Any) -> str:
        if isinstance(value, str):
            return self._grammar.text((self._quote, value, self._quote))
        if isinstance(value, Mapping):
            return f'"{{" {_with_commas(self._pair(key, {"const": each}) for key, each in value.items())} "}}"'
        if isinstance(value, list):
            return f'"[" {_with_commas(map(self._exactly, value))} "]"'
        return self._grammar.text((json.dumps(value),))

    def _rule(self, body: str) -> str:
        return _rule(self._grammar, body)

    def _one_of(self, texts: Iterable[str]) -> str:
        return f"({' | '.join(texts)})"


def with_separators(parts: Sequence[tuple[str, bool]], separator: str, grammar: Grammar) -> str:
    """The grammar of parts in this order, with separators between them.

    Args:
        parts: for each part, its grammar, and whether it may be missing.
        separator: the grammar of a separator.
        grammar: the grammar to which rules are added.
    """
    firsts: list[str] = []  # for each part that may come first, the grammar of this and all later parts
    behind = ""  # the grammar of all parts after the current one
    for text, may_lack in reversed(parts):
        part = _rule(grammar, text)
        firsts = [f"{part} {behind}", *(firsts if may_lack else [])]
        behind = _rule(grammar, f"({separator} {part})? {behind}" if may_lack else f"{separator} {part} {behind}")
    needs_one = not all(may_lack for _, may_lack in parts)
    return f"({' | '.join(firsts)})" + ("" if needs_one else "?") if firsts else ""


def _rule(grammar: Grammar, body: str) -> str:
    return grammar.rule(lambda: body)


def _with_commas(texts: Iterable[str]) -> str:
    return ' "," '.join(texts)


def _times(text: str, low: int, high: int | None) -> str:
    return "" if high == 0 else f"{text}{{{max(0, low)},{'' if high is None else high}}}"
