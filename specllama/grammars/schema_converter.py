"""llama_cpp's converter from JSON schemas to grammars, stopped before a grammar takes all memory."""

from __future__ import annotations

import json
import re
from typing import Any

from llama_cpp.llama_grammar import STRING_FORMAT_RULES, SchemaConverter

_LONGEST = 20_000_000  # the most characters of a grammar, by the estimates below
_OF_EACH = 16  # characters that are counted around each repeated item
_OF_VISIT = 100  # characters that are counted for each visit of a part; references may lead to many visits
_MOST_SHOWN = 20  # the most digits of a number in an error message
_PRECEDE = {"oneOf", "anyOf", "const", "enum"}  # beside one of these keys, the converter ignores all others
_OBJECT = {"properties", "additionalProperties", "allOf"}


class TooLargeError(ValueError):
    """Raised if the grammar of a schema would be too long."""

    def __init__(self, cause: str) -> None:
        super().__init__(
            f"the JSON schema makes a grammar of more than {_LONGEST} characters ({cause}): lower maxItems, maxLength "
            "and the like, leave them out, or simplify the schema"
        )


def grammar_of_schema(schema: str) -> str:
    """The grammar that llama_cpp's ``json_schema_to_gbnf`` makes of a schema.

    Raises:
        TooLargeError: the grammar would be too long.
        Exception: an error of ``json_schema_to_gbnf``.
    """
    converter: Any = _Converter()
    converter.visit(converter.resolve_refs(json.loads(schema), "stdin"), "")
    return str(converter.format_grammar())


def _repeated(schema: dict[str, Any]) -> tuple[tuple[str, ...], str]:
    """The keys of a schema by which the converter repeats an item, and the reference of the item (empty: none).

    The checks have the order of the converter's own. Keys that the converter ignores, such as a ``maxLength`` beside a
    ``format``, are left out.
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
    """A converter that counts the characters that it writes, and counts repetitions before it writes them out."""

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
                self._write(count * (len(name) + len(reference) + _OF_EACH), f"{key}={str(count)[:_MOST_SHOWN]}")
        return super().visit(schema, name)  # type: ignore[no-untyped-call]

    def _visit_pattern(self, pattern: str, name: str) -> Any:
        for braces in re.findall(r"\{([^}]*)\}", pattern):
            for digits in re.findall(r"\d+", braces.replace("_", "")):
                count = int(digits[:18])
                self._write(count * (len(name) + len(pattern) + _OF_EACH), f"{{{digits[:_MOST_SHOWN]}}} in a pattern")
        return super()._visit_pattern(pattern, name)  # type: ignore[no-untyped-call]

    def _add_rule(self, name: str, rule: str) -> Any:
        if (name, rule) not in self._known:  # rules of optional properties come again and again
            self._known.add((name, rule))
            self._write(len(name) + len(rule), "in all")
        return super()._add_rule(name, rule)  # type: ignore[no-untyped-call]

    def _write(self, num_characters: int, cause: str) -> None:
        self._num_written += max(0, num_characters)
        if self._num_written > _LONGEST:
            raise TooLargeError(cause)
