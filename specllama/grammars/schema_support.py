"""What of a JSON schema llama_cpp's converter passes over: its grammar then allows answers that the schema does not."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from llama_cpp.llama_grammar import STRING_FORMAT_RULES

# All that says which values are valid. What else a schema has (title, default, x-...) is for readers.
_KEYWORDS = {
    *("type", "const", "enum", "$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not", "if", "then"),
    *("else", "properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties"),
    *("maxProperties", "dependencies", "dependentRequired", "dependentSchemas", "unevaluatedProperties", "items"),
    *("prefixItems", "additionalItems", "unevaluatedItems", "contains", "minContains", "maxContains", "minItems"),
    *("maxItems", "uniqueItems", "minLength", "maxLength", "pattern", "format", "minimum", "maximum"),
    *("exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
_TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
}
# Letters, digits, lists of them, groups and repetitions: the same in a regular expression and in a grammar.
_SAFE_PATTERN = re.compile(r"\^(?:[\w \-]|\[[\w \-]+\]|[()*+?]|\{\d+(?:,\d*)?\}|\((?:[\w \-]+\|)+[\w \-]+\))*\$", re.A)
_COMPONENT = {"type", "properties", "required"}  # of an allOf


def passed_over(schema: dict[str, Any], resolve: Callable[[str], Any]) -> Iterator[str]:
    """The keywords of one schema, without those within it, that the converter does not look at, or not rightly.

    Args:
        schema: what ``SchemaConverter.visit`` is called with.
        resolve: gives the schema that a ``$ref`` means.
    """
    given = {name for name in schema if name in _KEYWORDS}
    used = _looked_at(schema)
    yield from sorted(given - used)
    yield from _half_followed(schema, used, resolve)


def _looked_at(schema: dict[str, Any]) -> set[str]:
    """The keywords that the converter follows. It asks in this order, and follows one group."""
    kind = schema.get("type")
    if schema.get("$ref") is not None:
        return {"$ref"}
    if "oneOf" in schema or "anyOf" in schema:
        return {"oneOf"} if schema.get("oneOf") else {"anyOf"}
    if isinstance(kind, list):
        return {"type"}
    for name in ("const", "enum"):
        if name in schema:
            return {name, "type"}
    if kind in (None, "object") and ("properties" in schema or schema.get("additionalProperties", True) is not True):
        return {"type", "properties", "required", "additionalProperties"}
    if kind in (None, "object") and "allOf" in schema:
        return {"type", "allOf"}
    return _looked_at_simple(schema, kind)


def _looked_at_simple(schema: dict[str, Any], kind: Any) -> set[str]:
    if kind in (None, "array") and ("items" in schema or "prefixItems" in schema):
        if not schema.get("items"):
            return {"type", "prefixItems", "items"}
        return {"type", "items"} if isinstance(schema["items"], list) else {"type", "items", "minItems", "maxItems"}
    if kind in (None, "string"):
        if "pattern" in schema:
            return {"type", "pattern"}
        name = str(schema.get("format"))
        if re.match(r"^uuid[1-5]?$", name) or f"{name}-string" in STRING_FORMAT_RULES:
            return {"type", "format"}
        return {"type", "minLength", "maxLength"} if kind else {"type"}
    return {"type"}


def _half_followed(schema: dict[str, Any], used: set[str], resolve: Callable[[str], Any]) -> Iterator[str]:
    kind = schema.get("type")
    if "oneOf" in used and not _exclude_each_other(schema["oneOf"], resolve):
        yield "oneOf (of alternatives that may both be true)"
    for name, values in (("const", [schema.get("const")]), ("enum", schema.get("enum") or [])):
        if name in used and kind in _TYPES and not all(map(_TYPES[kind], values)):
            yield "type (of other values)"
        if name in used and not _is_written_rightly(values):
            yield f"{name} (of texts with characters that JSON escapes)"
    if "properties" in used:
        yield from _half_followed_object(schema)
    if "allOf" in used:
        yield from _half_followed_all(schema["allOf"], resolve)
    if "prefixItems" in used and schema.get("items") is True:
        yield "items"
    if "pattern" in used and not _SAFE_PATTERN.fullmatch(str(schema["pattern"])):
        yield "pattern (but for letters, digits, lists of them, groups and repetitions, between ^ and $)"


def _half_followed_object(schema: dict[str, Any]) -> Iterator[str]:
    properties = schema.get("properties", {})
    if any(name not in properties for name in schema.get("required", ())):
        yield "required (of a property that is not in properties)"
    if properties and schema.get("additionalProperties"):
        yield "additionalProperties (which may repeat a property)"
    if not _is_written_rightly(list(properties)):
        yield "properties (with characters that JSON escapes)"
    if "" in properties:
        yield "properties (one without a name)"


def _is_written_rightly(values: Any) -> bool:
    """Whether the converter's grammar has these values as JSON does. It forgets that a grammar has escapes, too."""
    text = json.dumps(values, ensure_ascii=False)
    return "\\" not in text and max(map(ord, text)) < 0x10000 and '"$ref"' not in text


def _half_followed_all(parts: Any, resolve: Callable[[str], Any]) -> Iterator[str]:
    components = [_resolved(part, resolve) for part in parts]
    names = [name for part in components if isinstance(part, dict) for name in part.get("properties", {})]
    for part in components:
        if not isinstance(part, dict) or _KEYWORDS & part.keys() - _COMPONENT or "properties" not in part:
            yield "allOf (but for properties of objects)"
            return
    required = [name for part in components for name in part.get("required", ())]
    if len(set(names)) < len(names) or not set(required) <= set(names):
        yield "allOf (of overlapping properties)"


def _exclude_each_other(alternatives: Any, resolve: Callable[[str], Any]) -> bool:
    schemas = [_resolved(one, resolve) for one in alternatives]
    return all(itertools.starmap(_differ, itertools.combinations(schemas, 2)))


def _differ(first: Any, second: Any) -> bool:
    """Whether no value is valid by both, as far as types, values and required properties tell."""
    if not isinstance(first, dict) or not isinstance(second, dict):
        return False
    values = [_values(one) for one in (first, second)]
    if None not in values:
        return not any(value in (values[1] or ()) for value in values[0] or ())
    kinds = [one.get("type") for one in (first, second)]
    if all(kind in _TYPES for kind in kinds) and kinds[0] != kinds[1]:
        return set(kinds) != {"integer", "number"}
    if kinds != ["object", "object"]:
        return False
    shared = set(first.get("required", ())) & set(second.get("required", ()))
    return any(_differ(first["properties"].get(name), second["properties"].get(name)) for name in shared)


def _values(schema: dict[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    found = schema.get("enum")
    return found if isinstance(found, list) else None


def _resolved(schema: Any, resolve: Callable[[str], Any]) -> Any:
    if isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
        return resolve(schema["$ref"])
    return schema
