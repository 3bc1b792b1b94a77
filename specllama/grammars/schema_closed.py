"""Objects have the properties that a schema names, and no others where it does not speak of others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_ONE = ("items", "additionalProperties")
_TOGETHER = ("anyOf", "oneOf", "allOf", "$ref", "properties")  # of which one alone says what an object's properties are
_OTHERS = ("additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames", "minProperties")


def closed_schema(text: str) -> str | None:
    """A schema whose answers are valid by this one, too, and which ends: a model could add properties forever.

    llama_cpp's grammars of schemas have no other properties either.

    Args:
        text: the schema as JSON.

    Returns:
        The closed schema as JSON; None if nothing can be closed. Schemas that hold together are left as they are: what
        one of them does not name another one may require.
    """
    schema = json.loads(text)
    parts = list(_schemas(schema))
    if any(_hold_together(part) for part in parts):
        return None
    open_objects = [part for part in parts if _is_open(part)]
    for part in open_objects:
        part["additionalProperties"] = False
    return json.dumps(schema) if open_objects else None


def _is_open(part: dict[str, Any]) -> bool:
    properties, required = part.get("properties"), part.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list) or any(name in part for name in _OTHERS):
        return False
    return bool(properties) and all(isinstance(name, str) and name in properties for name in required)


def _hold_together(part: dict[str, Any]) -> bool:
    members = part.get("allOf")
    several = isinstance(members, list) and len(members) > 1
    return several or sum(name in part for name in _TOGETHER) > 1


def _schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """All schemas in a schema, and nothing else: the value of an "enum" may look like one."""
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
