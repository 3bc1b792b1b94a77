"""Arguments that are written as keys and values between marks. A value is JSON, or plain text for a string."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

from .format import Grammar, Pieces, Regex
from .json_calls import escaped, json_or_string
from .reading import Parsing, Reading, closing, literally, text_until

_OF_PYTHON = {"True": "true", "False": "false", "None": "null"}
"""Python's constants, as some chat templates write them in earlier calls, and their JSON."""
_ANY_KEY = Regex(r'[^<>"\n]+')
_SHARED = ("$defs", "definitions")  # parts of a schema that the schemas of its properties may refer to


@dataclasses.dataclass(frozen=True)
class Keyed:
    """The marks of one form with keys and values.

    Attributes:
        before: the mark before a key.
        behind: the mark after a key.
        end: the mark after a value.
        opening: the mark before a value; empty if there is none.
        breaks: whether a value stands on lines of its own.
    """

    before: str
    behind: str
    end: str
    opening: str = ""
    breaks: bool = False

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
            read = self._text if types.get(name) == "string" else self._value
            if not (yield from read(reading, reading.arguments)):
                return
        if before == "{":
            reading.arguments("{")
        for end in ends:
            if (yield from closing(reading, end)):
                reading.arguments("}")
                return

    def _text(self, reading: Reading, write: Callable[[str], None]) -> Parsing[str]:
        """Read a value, and write it as a JSON string. A line break at its end is left out if `breaks` is true."""
        held = ""

        def add(character: str) -> None:
            nonlocal held
            write(escaped(held))
            held = character if character == "\n" and self.breaks else ""
            write(escaped("" if held else character))

        write('"')
        found = yield from text_until(reading, add, (self.end,))
        write('"' if found else "")
        return found

    def _value(self, reading: Reading, write: Callable[[str], None]) -> Parsing[str]:
        """Read a value, and write it unchanged if it is JSON, and otherwise as a JSON string."""
        value: list[str] = []
        found = yield from text_until(reading, value.append, (self.end,))
        text = "".join(value)
        text = text.removesuffix("\n") if self.breaks else text
        if found:
            write(json_or_string(_OF_PYTHON.get(text, text)))
        else:  # the answer was cut off within the value
            words = (as_json[: len(text)] for word, as_json in _OF_PYTHON.items() if text and word.startswith(text))
            write(next(words, text))
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
            shared = {name: schema[name] for name in _SHARED if name in schema}
            value = f"{grammar.schema({**shared, **known})} {grammar.text(behind)}"
        return f"{before} {value}"


def _types(schema: Any) -> dict[str, Any]:
    """The types of a tool's parameters, by the parameters' names, as far as the schema gives types."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping):
        return {}
    return {name: part.get("type") for name, part in properties.items() if isinstance(part, Mapping)}
