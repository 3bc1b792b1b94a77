"""Finds schemas that llguidance must not get: it would follow them wrongly, or hang, or crash the process."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any

from llguidance import LLMatcher

# The most characters of a schema, without values in its lists (enum). 10,000 optional properties take llguidance 15 s.
_LONGEST = 100_000
_LONGEST_VALUE = 1000  # characters; a longer value counts towards `_LONGEST`, and not as a value in a list
_LONGEST_VALUES = 5_000_000  # the most characters of all values in lists; 100,000 values take a second
_MOST_REPETITIONS = 20_000  # the sum of all `_COUNTS`: llguidance writes repetitions out, a million take 15 s and 1 GB
_DEEPEST = 300  # the largest depth, with references (llguidance recurses): 480 levels need a stack of 1 MB
_LARGEST_MULTIPLE = 10_000  # the largest common multiple of all multipleOf: llguidance's automaton has as many states
_LARGEST = 2**53  # the largest absolute number: llguidance rounds larger ones, and -2**63 crashes the process
_LARGEST_OF_64_BITS = 2**63 - 1  # allowed as a maximum, for which it is usual, and which llguidance follows rightly
# The keys of a schema whose values are lists of schemas, maps to schemas, or one schema. An "enum" has none.
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_ONE = ("items", "additionalProperties")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_COUNTS = ("minItems", "maxItems", "minProperties", "maxProperties")


def too_much_for_matcher(schema: dict[str, Any], num_characters: int) -> str | None:
    """Why llguidance must not get a schema: a part is too large, or would be followed wrongly; None if it may.

    Args:
        schema: the schema.
        num_characters: the number of characters of the schema as JSON.
    """
    if num_characters > _LONGEST + _LONGEST_VALUES:
        return f"{num_characters} characters of schema: at most {_LONGEST}, and {_LONGEST_VALUES} of values in enum"
    parts = list(dicts(schema))
    listed = sum(map(_characters_of_values, schemas(schema)))
    if listed > _LONGEST_VALUES or num_characters - listed > _LONGEST:
        return (
            f"{num_characters} characters of schema, {listed} of them of texts and numbers in enum: at most "
            f"{_LONGEST_VALUES} of these, and {_LONGEST} others"
        )
    repetitions = sum(_whole(part.get(name)) for part in parts for name in _COUNTS)
    if repetitions > _MOST_REPETITIONS:
        return f"{' and '.join(_COUNTS)} of together more than {_MOST_REPETITIONS}"
    if _multiple(parts) > _LARGEST_MULTIPLE:
        return f"multipleOf with a common multiple of more than {_LARGEST_MULTIPLE} steps"
    if _depth_with_references(schema, parts) > _DEEPEST:
        return f"references nested more than {_DEEPEST} deep"
    inexact = next((number for part in parts for number in _numbers(part) if abs(number) > _LARGEST), None)
    if inexact is not None:
        return f"the number {inexact}: numbers are exact up to {_LARGEST}, so leave it out, or ask for a string"
    return next(filter(None, map(_half_followed, parts)), None)


def _characters_of_values(part: dict[str, Any]) -> int:
    """How many characters of a schema's JSON are values in its ``enum``: texts and numbers.

    Such values have a limit of their own: llguidance makes one automaton of all, so they cost less than other parts.
    """
    values = part.get("enum")
    if not isinstance(values, list):
        return 0
    sizes = [len(json.dumps(value)) + 2 for value in values if not isinstance(value, (list, dict))]
    return sum(size for size in sizes if size <= _LONGEST_VALUE)


def _numbers(part: dict[str, Any]) -> Iterator[int | float]:
    """The numbers in a schema that must be exact: values of ``const`` and ``enum``, and bounds of numbers."""
    waiting = [part[name] for name in ("const", "enum", *_BOUNDS) if name in part]
    if part.get("maximum") == _LARGEST_OF_64_BITS:
        waiting.remove(_LARGEST_OF_64_BITS)
    while waiting:
        value = waiting.pop()
        if isinstance(value, (int, float)):
            yield value
        elif isinstance(value, (list, dict)):
            waiting += value.values() if isinstance(value, dict) else value


def _half_followed(part: dict[str, Any]) -> str | None:
    """A part of a schema that llguidance ignores without an error; None if there is none."""
    properties, patterns = part.get("properties"), part.get("patternProperties")
    if isinstance(part.get("items"), list) or "additionalItems" in part:
        return "items as a list (since draft 2020-12 that is prefixItems)"
    if properties and patterns and isinstance(properties, dict) and isinstance(patterns, dict):
        return "properties that patternProperties names, too" if _share(properties, patterns) else None
    return None


def _share(names: Iterable[str], patterns: Iterable[str]) -> bool:
    """Whether one of the names matches one of the patterns. Python's ``re`` is not used: it could take forever."""
    both = {"type": "string", "enum": [*names], "pattern": "|".join(f"(?:{pattern})" for pattern in patterns)}
    error = LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(both))
    return not error.startswith("Unsatisfiable")


def schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """The schema itself, and all schemas nested in it."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if not isinstance(part, dict):
            continue
        yield part
        for name, inner in part.items():
            if name in _LISTS and isinstance(inner, list):
                waiting += inner
            elif name in _MAPS and isinstance(inner, dict):
                waiting += inner.values()
            elif name in _ONE:
                waiting.append(inner)


def dicts(value: Any) -> Iterator[dict[str, Any]]:
    """All dicts nested in a value, and the value itself if it is one."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part


def _whole(value: Any) -> int:
    return int(value) if isinstance(value, (int, float)) and 0 < value < math.inf else 0


def _multiple(parts: list[dict[str, Any]]) -> int:
    """The least common multiple of the numerators of all ``multipleOf``, written as fractions."""
    given = {repr(part["multipleOf"]) for part in parts if isinstance(part.get("multipleOf"), (int, float))}
    multiple = 1
    for text in given:
        try:
            multiple = math.lcm(multiple, Fraction(text).numerator)
        except (ValueError, ZeroDivisionError):  # such as inf, which Python reads although it is no JSON
            return _LARGEST_MULTIPLE + 1
        if multiple > _LARGEST_MULTIPLE:
            break
    return multiple


def _depth_with_references(schema: Any, parts: list[dict[str, Any]]) -> int:
    """An upper bound of a schema's depth if each of its references is followed once."""
    references = {part["$ref"] for part in parts if isinstance(part.get("$ref"), str)}
    return _depth(schema) + sum(_depth(_referred(schema, reference)) for reference in references)


def _depth(value: Any) -> int:
    deepest, waiting = 0, [(value, 1)]
    while waiting:
        part, depth = waiting.pop()
        deepest = max(deepest, depth)
        if isinstance(part, dict):
            waiting += [(inner, depth + 1) for inner in part.values()]
        elif isinstance(part, list):
            waiting += [(inner, depth + 1) for inner in part]
    return deepest


def _referred(schema: Any, reference: str) -> Any:
    """The part that a pointer in the schema leads to; for other references the whole schema, which may be as deep."""
    if not reference.startswith("#/"):
        return schema
    found = schema
    for step in reference[2:].split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdigit() and int(name) < len(found):
            found = found[int(name)]
        else:
            return schema
    return found
