"""Reads values that are like JSON, with other quotes around texts, and writes them as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

from .format import Pieces
from .json_calls import as_json
from .reading import Parsing, Reading, closing, literally, spaces, text_until

Write = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Loose:
    """How a form writes values.

    Attributes:
        text: reads a text if one begins, writes it as a JSON string, and returns whether one begins.
        end: the mark that ends the call.
        ends: what ends a value without quotes, besides commas and brackets.
    """

    text: Callable[[Reading, Write], Parsing[bool]]
    end: str
    ends: Pieces = ()

    def value(self, reading: Reading, write: Write) -> Parsing[None]:
        """Read a value, and write it as JSON."""
        yield from spaces(reading)
        if (yield from self.text(reading, write)):
            return
        for bracket, closed in (("{", "}"), ("[", "]")):
            if (yield from literally(reading, bracket)):
                yield from self.members(reading, write, bracket + closed, closed)
                return
        word: list[str] = []
        found = yield from text_until(reading, word.append, (",", "}", "]", self.end, *self.ends))
        reading.back_to(reading.at - len(found))
        write(as_json("".join(word).strip(), is_whole=bool(found)))

    def members(self, reading: Reading, write: Write, brackets: str, closed: str, colon: str = ":") -> Parsing[None]:
        """Read the members of an object or a list behind its first bracket, and write them as JSON.

        Args:
            reading: the state.
            write: gets the JSON.
            brackets: the brackets to write, ``{}`` for an object or ``[]`` for a list.
            closed: the bracket that is read behind the members.
            colon: what stands between a key and its value.
        """
        write(brackets[0])
        is_first = True
        while not (yield from closing(reading, closed)):
            yield from closing(reading, ",")
            at = reading.at
            is_over = not (yield from reading.next())
            reading.back_to(at)
            if is_over or (yield from closing(reading, self.end)):
                reading.back_to(at)
                return
            comma = "" if is_first else ", "
            is_first = False
            if brackets == "{}":
                yield from spaces(reading)
                key: list[str] = []
                behind: list[str] = []  # the text between a key in quotes and the colon
                is_quoted = yield from self.text(reading, key.append)
                write_to = behind if is_quoted else key
                found = yield from text_until(reading, write_to.append, (colon, self.end))
                if found != colon:
                    reading.back_to(reading.at - len(found))
                    return
                name = "".join(key)
                write(f"{comma}{name if is_quoted else json.dumps(name.strip(), ensure_ascii=False)}: ")
            else:
                write(comma)
            yield from self.value(reading, write)
            if reading.at == at:  # nothing was read: a bracket that closes another list or object stands here
                return
        write(brackets[1])
