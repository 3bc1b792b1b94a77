"""llama_cpp's converter of JSON schemas, stopped before what it writes takes all memory."""

from __future__ import annotations

import json
import re
from typing import Any

from llama_cpp.llama_grammar import STRING_FORMAT_RULES, SchemaConverter

_LONGEST = 20_000_000  # characters
_OF_EACH = 16  # characters around a thing that is repeated
_OF_VISIT = 100  # of a part of the schema; what is referred to may be visited again and again
_SHOWN = 20  # digits
_PRECEDE = {"oneOf", "anyOf", "const", "enum"}  # what the converter looks at first, and then at nothing else
_OBJECT = {"properties", "additionalProperties", "allOf"}


class TooLargeError(ValueError):
    """The schema's grammar would be too long."""

    def __init__(self, cause: str) -> None:
        super().__init__(
            f"the JSON schema makes a grammar of more than {_LONGEST} characters ({cause}): lower maxItems, maxLength "
            "and the like, leave them out, or simplify the schema"
        )


def grammar_of_schema(schema: str) -> str:
    """What llama_cpp's ``json_schema_to_gbnf`` gives.

    Raises:
        TooLargeError: it would be too long.
        Exception: whatever that raises.
    """
    converter: Any = _Converter()
    converter.visit(converter.resolve_refs(json.loads(schema), "stdin"), "")
    return str(converter.format_grammar())


def _repeated(schema: dict[str, Any]) -> tuple[tuple[str, ...], str]:
    """The keys by which the converter repeats a thing in this schema, and what the thing refers to.

    It asks in this order. What it ignores, a ``maxLength`` beside a ``format`` say, must not count.
    """
    kind, items = schema.get("type"), schema.get("items")
    if schema.get("$ref") is not None or _PRECEDE & schema.keys() or isinstance(kind, list):
        return (), ""
    if kind is None and _OBJECT & schema.keys():
        return (), ""
    if kind in (None, "array") and isinstance(items, dict):
        return ("minItems", "maxItems"), str(items.get("$ref", ""))
    if kind == "string" and "pattern" not in schema and not _has_format(schema.get("format")):
        return ("minLength", "maxLength"), ""
    return (), ""


def _has_format(name: Any) -> bool:
    return re.match(r"^uuid[1-5]?$", name or "") is not None or f"{name}-string" in STRING_FORMAT_RULES


class _Converter(SchemaConverter):
    """Counts what it writes, and looks at how often something is to be repeated before it is."""

    def __init__(self) -> None:
        settings = {"prop_order": {}, "allow_fetch": False, "dotall": False, "raw_pattern": False}
        super().__init__(**settings)  # type: ignore[no-untyped-call]
        self._num_written = 0
        self._known: set[tuple[str, str]] = set()

    def visit(self, schema: Any, name: str) -> Any:
        self._write(_OF_VISIT, "in all")
        keys, reference = _repeated(schema)
        for key in keys:
            count = schema.get(key)
            if isinstance(count, int):
                self._write(count * (len(name) + len(reference) + _OF_EACH), f"{key}={str(count)[:_SHOWN]}")
        return super().visit(schema, name)  # type: ignore[no-untyped-call]

    def _visit_pattern(self, pattern: str, name: str) -> Any:
        for braces in re.findall(r"\{([^}]*)\}", pattern):
            for digits in re.findall(r"\d+", braces.replace("_", "")):
                count = int(digits[:18])
                self._write(count * (len(name) + len(pattern) + _OF_EACH), f"{{{digits[:_SHOWN]}}} in a pattern")
        return super()._visit_pattern(pattern, name)  # type: ignore[no-untyped-call]

    def _add_rule(self, name: str, rule: str) -> Any:
        if (name, rule) not in self._known:  # the rules of optional properties are written again for each of them
            self._known.add((name, rule))
            self._write(len(name) + len(rule), "in all")
        return super()._add_rule(name, rule)  # type: ignore[no-untyped-call]

    def _write(self, num_characters: int, cause: str) -> None:
        self._num_written += max(0, num_characters)
        if self._num_written > _LONGEST:
            raise TooLargeError(cause)
