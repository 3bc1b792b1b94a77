"""llama_cpp's converter of JSON schemas, stopped before what it writes takes all memory."""

from __future__ import annotations

import json
import re
from typing import Any

from llama_cpp.llama_grammar import SchemaConverter

_LONGEST = 20_000_000  # characters
_OF_EACH = 16  # characters around a thing that is repeated
_OF_VISIT = 100  # of a part of the schema; what is referred to may be visited again and again
_SHOWN = 20  # digits
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength")


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


class _Converter(SchemaConverter):
    """Counts what it writes, and looks at how often something is to be repeated before it is."""

    def __init__(self) -> None:
        settings = {"prop_order": {}, "allow_fetch": False, "dotall": False, "raw_pattern": False}
        super().__init__(**settings)  # type: ignore[no-untyped-call]
        self._num_written = 0
        self._known: set[tuple[str, str]] = set()

    def visit(self, schema: Any, name: str) -> Any:
        self._write(_OF_VISIT, "in all")
        for key in _COUNTS:
            count = schema.get(key)
            if isinstance(count, int):
                items = schema.get("items")
                reference = str(items.get("$ref", "")) if isinstance(items, dict) else ""
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
