"""What llguidance is not given: schemas that it follows wrongly, or on which it would hold or end the process."""

from __future__ import annotations

import collections
import json
import math
import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

_LONGEST = 100_000  # characters
_MOST_REPETITIONS = 20_000  # it writes them out: a million take 15 s and 1 GB, a billion all memory
_DEEPEST = 300  # of all that is referred to, together: it follows references by recursion. 480 need a stack of 1 MB
_LARGEST_MULTIPLE = 10_000  # of which all together are multiples: as many states has what recognises them
_MOST_ALTERNATIVES = 256  # of schemas that all hold: it multiplies them out
_MOST_STEPS = 20  # from one schema to the next
_MOST_VISITS = 20_000  # of schemas, until their alternatives are counted
_BESIDE = {"anyOf", "oneOf", "$ref", "properties"}  # what holds together with an allOf beside it
_COUNTS = ("minItems", "maxItems", "minProperties", "maxProperties")


def too_much_for_matcher(text: str) -> str | None:
    """What of a schema is too much for llguidance, or wrong there; None if it can have it.

    Args:
        text: the schema as JSON.
    """
    if len(text) > _LONGEST:
        return f"{len(text)} characters of schema: at most {_LONGEST}"
    schema = json.loads(text)
    parts = list(_dicts(schema))
    repetitions = sum(_whole(part.get(name)) for part in parts for name in _COUNTS)
    if repetitions > _MOST_REPETITIONS:
        return f"{' and '.join(_COUNTS)} of together more than {_MOST_REPETITIONS}"
    if _multiple(parts) > _LARGEST_MULTIPLE:
        return f"multipleOf with a common multiple of more than {_LARGEST_MULTIPLE} steps"
    if _depth_with_references(schema, parts) > _DEEPEST:
        return f"references nested more than {_DEEPEST} deep"
    if any(map(_Alternatives(schema).too_many, parts)):
        return f"allOf of more than {_MOST_ALTERNATIVES} combinations of alternatives"
    return next(filter(None, map(_half_followed, parts)), None)


def _half_followed(part: dict[str, Any]) -> str | None:
    """What llguidance passes over without a word."""
    properties, patterns = part.get("properties"), part.get("patternProperties")
    if isinstance(part.get("items"), list) or "additionalItems" in part:
        return "items as a list (since draft 2020-12 that is prefixItems)"
    if not isinstance(properties, dict) or not isinstance(patterns, dict):
        return None
    for pattern in patterns:
        try:
            matching = [name for name in properties if re.search(pattern, name)]
        except re.error:
            matching = list(properties)
        if matching:
            return f"properties ({matching[0]!r:.80}) that patternProperties names, too"
    return None


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
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
    """The least common multiple of all multipleOf, in steps of the smallest decimal place that they have."""
    given = {repr(part["multipleOf"]) for part in parts if isinstance(part.get("multipleOf"), (int, float))}
    multiple = 1
    for text in given:
        try:
            multiple = math.lcm(multiple, Fraction(text).numerator)
        except (ValueError, ZeroDivisionError):  # inf and the like: no JSON
            return _LARGEST_MULTIPLE + 1
        if multiple > _LARGEST_MULTIPLE:
            break
    return multiple


def _depth_with_references(schema: Any, parts: list[dict[str, Any]]) -> int:
    """No way along references, each of them taken once, is longer."""
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
    """What a pointer within the schema leads to; the whole schema for any other reference, which may be as deep."""
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


class _Alternatives:
    """How many schemas without alternatives a schema is, multiplied out."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._left = _MOST_VISITS

    def too_many(self, part: dict[str, Any]) -> bool:
        """Whether what this schema's allOf says together has too many."""
        members = part["allOf"] if isinstance(part.get("allOf"), list) else []
        if len(members) + bool(part.keys() & _BESIDE) < 2:
            return False
        return self._of(part, 0) > _MOST_ALTERNATIVES

    def _of(self, part: Any, depth: int) -> int:
        self._left -= 1
        if self._left < 0 or depth > _MOST_STEPS:
            return _MOST_ALTERNATIVES + 1
        part = self._resolved(part)
        count = 1
        for name in ("anyOf", "oneOf"):
            if isinstance(part.get(name), list):
                count *= max(1, self._sum(part[name], depth + 1))
        if isinstance(part.get("allOf"), list):
            members = [self._resolved(member) for member in part["allOf"]]
            for member in [*members, *self._shared(members)]:
                count = min(count * self._of(member, depth + 1), _MOST_ALTERNATIVES + 1)
        return min(count, _MOST_ALTERNATIVES + 1)

    def _sum(self, parts: list[Any], depth: int) -> int:
        total = 0
        for part in parts:
            total += self._of(part, depth)
            if total > _MOST_ALTERNATIVES:
                break
        return total

    def _shared(self, members: list[dict[str, Any]]) -> Iterator[Any]:
        """The schemas of properties that several members have: these hold together, too."""
        given = [member["properties"] for member in members if isinstance(member.get("properties"), dict)]
        names = collections.Counter(name for properties in given for name in properties)
        return (properties[name] for properties in given for name in properties if names[name] > 1)

    def _resolved(self, part: Any) -> dict[str, Any]:
        for _ in range(_MOST_STEPS):
            if not isinstance(part, dict) or not isinstance(part.get("$ref"), str):
                break
            if not part["$ref"].startswith("#/"):
                self._left = 0  # whatever it leads to
            part = _referred(self._schema, part["$ref"])
        return part if isinstance(part, dict) else {}
