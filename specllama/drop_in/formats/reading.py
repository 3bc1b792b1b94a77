"""An answer, read character by character: where it is cut into pieces makes no difference."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Generator, Mapping
from typing import Any, TypeVar

_Result = TypeVar("_Result")
Parsing = Generator[None, str, _Result]
"""Reads what it is sent, a character each time, and an empty text from the end on."""
Delta = dict[str, Any]
"""Those of ``reasoning_content``, ``content`` and ``tool_calls`` that there is something of, as in OpenAI's chunks."""


class Reading:
    """What was read of an answer, and what it says.

    Args:
        tools: the schemas of the parameters of those that there are, by their names.
        parallel: whether there may be more than one call. Those behind the first are left out else.
        has_calls: whether there may be any. Spaces are held back then: a call takes those before it with it.

    Attributes:
        tools: the same.
        is_over: whether the one call that there may be was made: what follows would be left out.
    """

    def __init__(self, tools: Mapping[str, Any], *, parallel: bool = True, has_calls: bool = True) -> None:
        self.tools = tools
        self._parallel = parallel
        self._holds = has_calls
        self._read: list[str] = []
        self._back: list[str] = []  # given back, the next one last
        self._spaces = ""  # of the content, not written yet
        self._is_fresh = False  # behind a call or a thought, from which a line break takes the content
        self._has_content = False
        self._thought_spaces = ""
        self._thinks_first = True
        self._said: dict[str, list[str]] = {"reasoning_content": [], "content": []}
        self._calls: list[Delta] = []  # what is new of each
        self._number = -1
        self._is_left_out = False
        self.is_over = False

    # What is read

    def next(self) -> Parsing[str]:
        """The next character; empty at the end."""
        character = self._back.pop() if self._back else (yield)
        if character:
            self._read.append(character)
        return character

    @property
    def at(self) -> int:
        """How much was read."""
        return len(self._read)

    def since(self, at: int) -> str:
        """What was read since then."""
        return "".join(self._read[at:])

    def back_to(self, at: int) -> None:
        """Reads again what was read since then."""
        self._back += reversed(self._read[at:])
        del self._read[at:]

    # What it says

    def content(self, text: str) -> None:
        """Words for the user."""
        if self._is_fresh:
            text = text.lstrip()
            if not text:
                return
            self._is_fresh, self._spaces = False, "\n" if self._has_content else ""
        text = self._spaces + text
        words = text.rstrip() if self._holds else text
        self._spaces = text[len(words) :]
        self._has_content = self._has_content or bool(words)
        self._said["content"].append(words)

    def begin_thought(self) -> None:
        """Thoughts follow."""
        self._thought_spaces = "" if self._thinks_first else "\n"
        self._thinks_first = True

    def thought(self, text: str) -> None:
        """A part of a thought. Spaces around it are left out."""
        text = self._thought_spaces + (text.lstrip() if self._thinks_first and not self._thought_spaces else text)
        words = text.rstrip()
        self._thought_spaces = text[len(words) :]
        if words:
            self._thinks_first = False
            self._said["reasoning_content"].append(words)

    def end_thought(self) -> None:
        """The thought is over."""
        self._is_fresh = True

    def call(self, name: str, known_as: str | None = None) -> None:
        """A tool is called. Its arguments follow."""
        self._spaces, self._is_fresh = "", True
        self._is_left_out = self._number >= 0 and not self._parallel
        if self._is_left_out:
            self.is_over = True
            return
        self._number += 1
        # Some templates want nine letters or digits.
        call = {"index": self._number, "id": known_as or uuid.uuid4().hex[:9], "type": "function"}
        self._calls.append({**call, "function": {"name": name, "arguments": ""}})

    def arguments(self, text: str) -> None:
        """A part of the arguments of the last call."""
        if self._is_left_out or not text:
            return
        if not self._calls:
            self._calls.append({"index": self._number, "function": {"arguments": ""}})
        self._calls[-1]["function"]["arguments"] += text

    def end_calls(self) -> None:
        """What was begun as calls is behind us."""
        self.is_over = self.is_over or (self._number >= 0 and not self._parallel)

    def end(self) -> None:
        """The answer is over."""
        self._said["content"].append(self._spaces)
        self._spaces = ""

    def take(self) -> Delta:
        """What is new."""
        said: Delta = {name: text for name, texts in self._said.items() if (text := "".join(texts))}
        if self._calls:
            said["tool_calls"] = self._calls
        self._said = {name: [] for name in self._said}
        self._calls = []
        return said


def text_until(reading: Reading, write: Callable[[str], None], marks: Collection[str]) -> Parsing[str]:
    """Writes text up to one of some marks, which it gives; at the end an empty one."""
    pending = ""
    while character := (yield from reading.next()):
        pending += character
        while pending and not any(mark.startswith(pending) for mark in marks):
            write(pending[0])
            pending = pending[1:]
        if pending in marks:
            return pending
    if pending:
        write(pending)
    return ""


def literally(reading: Reading, text: str) -> Parsing[bool]:
    """Whether this text is next. If so, it is read."""
    at = reading.at
    for expected in text:
        if (yield from reading.next()) != expected:
            reading.back_to(at)
            return False
    return True


def spaces(reading: Reading) -> Parsing[None]:
    """Reads spaces, if there are any."""
    at = reading.at
    while (yield from reading.next()).isspace():
        at = reading.at
    reading.back_to(at)


def closing(reading: Reading, text: str) -> Parsing[bool]:
    """Whether this text is next, behind spaces. If so, it is read with them."""
    at = reading.at
    yield from spaces(reading)
    found = yield from literally(reading, text)
    if not found:
        reading.back_to(at)
    return found


class Reader:
    """Reads an answer in pieces.

    Args:
        reading: what it is read into.
        parsing: what reads it.
    """

    def __init__(self, reading: Reading, parsing: Parsing[None]) -> None:
        self._reading = reading
        self._parsing = parsing
        self._has_ended = next(parsing, True) is True

    @property
    def is_over(self) -> bool:
        """Whether nothing that follows would be told."""
        return self._reading.is_over

    def feed(self, text: str) -> Delta:
        """What a piece of it says."""
        for character in text:
            self._parsing.send(character)
        return self._reading.take()

    def end(self) -> Delta:
        """What is left to say."""
        try:
            while not self._has_ended:
                self._parsing.send("")
        except StopIteration:
            self._has_ended = True
        self._reading.end()
        return self._reading.take()
