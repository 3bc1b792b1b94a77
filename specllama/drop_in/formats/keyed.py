"""Arguments of which each is a key and a value between marks: a value is a text as it is, or JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

from .format import Grammar, Pieces, Regex
from .json_calls import escaped, json_or_string
from .reading import Parsing, Reading, closing, literally, text_until

_OF_PYTHON = {"True": "true", "False": "false", "None": "null"}
"""As some chat templates write the values of earlier calls."""
_ANY_KEY = Regex(r'[^<>"\n]+')
_SHARED = ("$defs", "definitions")  # parts of a schema to which those of its properties refer


@dataclasses.dataclass(frozen=True)
class Keyed:
    """How such arguments are written.

    Attributes:
        before: the mark before a key.
        behind: the mark behind it.
        opening: the mark before a value, if there is one of its own.
        end: the mark behind a value.
        breaks: a value stands on lines of its own.
    """

    before: str
    behind: str
    end: str
    opening: str = ""
    breaks: bool = False

    def read(self, reading: Reading, tool: str, ends: Pieces) -> Parsing[None]:
        """Reads the arguments of a call, up to one of the marks that end it, which it reads, too."""
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
        """Writes a value as a string, without the line break that ends it."""
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
        """Writes a value as it is, if it is JSON, else as a string."""
        value: list[str] = []
        found = yield from text_until(reading, value.append, (self.end,))
        text = "".join(value)
        text = text.removesuffix("\n") if self.breaks else text
        if found:
            write(json_or_string(_OF_PYTHON.get(text, text)))
        else:  # cut off
            words = (as_json[: len(text)] for word, as_json in _OF_PYTHON.items() if text and word.startswith(text))
            write(next(words, text))
        return found

    def written(self, schema: Mapping[str, Any], grammar: Grammar) -> str:
        """The grammar of the arguments: in the order of the schema, those that are required among them.

        Args:
            schema: of the parameters.
            grammar: gets the rules that it takes.
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
    """Of the parameters of a tool, as far as its schema says them."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping):
        return {}
    return {name: part.get("type") for name, part in properties.items() if isinstance(part, Mapping)}
