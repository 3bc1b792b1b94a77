"""Arguments that are written as keys and values between marks. A value is JSON, or plain text for a string."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from .format import Grammar, Pieces, Regex
from .json_calls import as_json, escaped
from .reading import Parsing, Reading, closing, literally, text_until

_ANY_KEY = Regex(r'[^<>"\n]+')
_SHARED = ("$defs", "definitions")  # parts of a schema that the schemas of its properties may refer to
_CDATA, _CDATA_END = "<![CDATA[", "]]>"


@dataclasses.dataclass(frozen=True)
class Keyed:
    """The marks of one form with keys and values.

    Attributes:
        before: the mark before a key.
        behind: the mark after a key.
        end: the mark after a value.
        opening: the mark before a value; empty if there is none.
        breaks: whether a value stands on lines of its own.
        cdata: whether a value may stand between ``<![CDATA[`` and ``]]>``. Then it is a text.
    """

    before: str
    behind: str
    end: str
    opening: str = ""
    breaks: bool = False
    cdata: bool = False

    def read(self, reading: Reading, tool: str, ends: Pieces) -> Parsing[None]:
        """Read the arguments of a call of `tool`, and the mark after them, which is one of `ends`."""
        types, before = _types(reading.tools.get(tool)), "{"
        while (yield from closing(reading, self.before)):
            key: list[str] = []
            if not (yield from text_until(reading, key.append, (self.behind,))):
                return
            if self.opening and not (yield from closing(reading, self.opening)):
                return
            if self.breaks:
                yield from literally(reading, "\n")
            name = "".join(key).strip()
            reading.arguments(before + json.dumps(name, ensure_ascii=False) + ": ")
            before = ", "
            is_quoted = self.cdata and (yield from literally(reading, _CDATA))
            read = self._text if is_quoted or types.get(name) == "string" else self._value
            if not (yield from read(reading, (f"{_CDATA_END}{self.end}", self.end) if is_quoted else (self.end,))):
                return
        if before == "{":
            reading.arguments("{")
        for end in ends:
            if (yield from closing(reading, end)):
                reading.arguments("}")
                return

    def call(self, reading: Reading, end: str) -> Parsing[bool]:
        """Read the rest of a call: the name up to ``">``, the arguments, and the mark `end`.

        Returns:
            False if the text is no call.
        """
        words: list[str] = []
        found = yield from text_until(reading, words.append, ('">', "\n"))
        name = "".join(words).strip()
        if found != '">' or not name:
            return False
        reading.call(name)
        yield from self.read(reading, name, (end,))
        return True

    def _text(self, reading: Reading, ends: Pieces) -> Parsing[str]:
        """Read a value, and write it as a JSON string. A line break at its end is left out if `breaks` is true."""
        write = reading.arguments
        held = ""

        def add(character: str) -> None:
            nonlocal held
            write(escaped(held))
            held = character if character == "\n" and self.breaks else ""
            write(escaped("" if held else character))

        write('"')
        found = yield from text_until(reading, add, ends)
        write('"' if found else "")
        return found

    def _value(self, reading: Reading, ends: Pieces) -> Parsing[str]:
        """Read a value, and write it unchanged if it is JSON, and otherwise as a JSON string."""
        value: list[str] = []
        found = yield from text_until(reading, value.append, ends)
        text = "".join(value)
        text = text.removesuffix("\n") if self.breaks else text
        reading.arguments(as_json(text, is_whole=bool(found)))
        return found

    def written(self, schema: Mapping[str, Any], grammar: Grammar) -> str:
        """The grammar of the arguments, in the order of the schema. Optional arguments may be missing.

        Args:
            schema: the schema of the parameters.
            grammar: the grammar that is being built.
        """
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or not properties:
            is_free = schema.get("additionalProperties", True) is not False
            return f"({self._pair(_ANY_KEY, None, schema, grammar)})*" if is_free else ""
        required = schema.get("required") or ()
        pairs = {key: self._pair(key, part, schema, grammar) for key, part in properties.items()}
        return " ".join(pair if key in required else f"({pair})?" for key, pair in pairs.items())

    def _pair(self, key: str, part: Any, schema: Mapping[str, Any], grammar: Grammar) -> str:
        line = ("\n",) if self.breaks else ()
        opening = (Regex(r"\n?"), self.opening) if self.opening else ()
        behind = (*line, self.end, Regex(r"\n?"))
        known = part if isinstance(part, Mapping) else {}
        before = grammar.text((self.before, key, self.behind, *opening, *line))
        texts = [known["const"]] if "const" in known else known.get("enum")
        if isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts):
            each = " | ".join(grammar.text((text,)) or '""' for text in texts)
            value = f"({each}) {grammar.text(behind)}"
        elif known.get("type", "string") == "string" and not known.keys() & {"$ref", "anyOf", "oneOf", "allOf", "enum"}:
            value = grammar.text_until("".join(line) + self.end) + " " + grammar.text(behind[-1:])
        else:
            value = f"{grammar.schema(with_definitions(known, schema))} {grammar.text(behind)}"
        return f"{before} {value}"


def with_definitions(part: Any, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of one property of `schema`, with the definitions that it may refer to."""
    shared = {name: schema[name] for name in _SHARED if name in schema}
    return {**shared, **(part if isinstance(part, Mapping) else {})}


def _types(schema: Any) -> dict[str, Any]:
    """The types of a tool's parameters, by the parameters' names, as far as the schema gives types."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping):
        return {}
    return {name: part.get("type") for name, part in properties.items() if isinstance(part, Mapping)}
