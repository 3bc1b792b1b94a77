"""Reads an answer character by character, so that the result does not depend on how the answer is cut into pieces."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Generator, Mapping
from typing import Any, TypeVar

_Result = TypeVar("_Result")
Parsing = Generator[None, str, _Result]
"""A reader of an answer, as a generator. ``send`` gives it one character at a time, and empty strings after the end."""
Delta = dict[str, Any]
"""The new parts of a message: ``reasoning_content``, ``content`` and ``tool_calls``. Empty fields are left out."""


class Reading:
    """The state of reading an answer: the characters read, and the content, thoughts and calls found in them.

    Args:
        tools: the schemas of the tools' parameters, by the tools' names.
        parallel: whether the answer may have more than one call. If not, calls after the first are left out.
        has_calls: whether the answer may have calls. Then spaces at the end are held back: before a call they are
            dropped.

    Attributes:
        tools: the argument.
        is_over: whether the only allowed call is complete, so that all later text is left out.
    """

    def __init__(self, tools: Mapping[str, Any], *, parallel: bool = True, has_calls: bool = True) -> None:
        self.tools = tools
        self._parallel = parallel
        self._holds = has_calls
        self._read: list[str] = []
        self._back: list[str] = []  # characters to read again, the next one last
        self._spaces = ""  # spaces of the content that are held back
        self._is_fresh = False  # whether a call or a thought was just read: blanks before the content are left out then
        self._has_content = False
        self._thought_spaces = ""
        self._thinks_first = True
        self._said: dict[str, list[str]] = {"reasoning_content": [], "content": []}
        self._calls: list[Delta] = []  # the new part of each call
        self._number = -1
        self._is_left_out = False
        self._has_ended = False
        self.is_over = False

    # The characters

    def next(self) -> Parsing[str]:
        """Read the next character; empty at the end."""
        character = self._back.pop() if self._back else (yield)
        if character:
            self._read.append(character)
        else:
            self._has_ended = True
        return character

    @property
    def at(self) -> int:
        """How many characters were read."""
        return len(self._read)

    def since(self, at: int) -> str:
        """The text that was read from position `at` on."""
        return "".join(self._read[at:])

    def back_to(self, at: int) -> None:
        """Go back to position `at`, to read the text after it again."""
        self._back += reversed(self._read[at:])
        del self._read[at:]

    def drop_rest(self) -> None:
        """Leave out all characters that are to be read again."""
        self._back.clear()

    # The message

    @property
    def is_cut_off(self) -> bool:
        """Whether the answer has ended in a call or right behind one. Then an unfinished mark does not become text."""
        return self._has_ended and self._is_fresh and self._number >= 0

    def content(self, text: str) -> None:
        """Add text for the user."""
        if self.is_cut_off:
            return
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
        """Begin a thought."""
        self._thought_spaces = "" if self._thinks_first else "\n"
        self._thinks_first = True

    def thought(self, text: str) -> None:
        """Add text to a thought. Spaces around the thought are left out."""
        text = self._thought_spaces + (text.lstrip() if self._thinks_first and not self._thought_spaces else text)
        words = text.rstrip()
        self._thought_spaces = text[len(words) :]
        if words:
            self._thinks_first = False
            self._said["reasoning_content"].append(words)

    def end_thought(self) -> None:
        """End a thought."""
        self._is_fresh = True

    def call(self, name: str, known_as: str | None = None) -> None:
        """Begin a call of a tool. Its arguments follow.

        Args:
            name: the tool.
            known_as: the id that the model has given to the call; None for a new one.
        """
        self._spaces, self._is_fresh = "", True
        self._is_left_out = self._number >= 0 and not self._parallel
        if self._is_left_out:
            self.is_over = True
            return
        self._number += 1
        # Some templates require an id of nine letters or digits.
        call = {"index": self._number, "id": known_as or uuid.uuid4().hex[:9], "type": "function"}
        self._calls.append({**call, "function": {"name": name, "arguments": ""}})

    def arguments(self, text: str) -> None:
        """Add text to the arguments of the last call."""
        if self._is_left_out or not text:
            return
        if not self._calls:
            self._calls.append({"index": self._number, "function": {"arguments": ""}})
        self._calls[-1]["function"]["arguments"] += text

    def end_calls(self) -> None:
        """Note that a call, or a row of calls, is complete."""
        self.is_over = self.is_over or (self._number >= 0 and not self._parallel)

    def end(self) -> None:
        """End the answer. No call follows any more, so the spaces that were held back belong to the content."""
        self._said["content"].append(self._spaces)
        self._spaces = ""

    def take(self) -> Delta:
        """The parts of the message that are new since the last call."""
        said: Delta = {name: text for name, texts in self._said.items() if (text := "".join(texts))}
        if self._calls:
            said["tool_calls"] = self._calls
        self._said = {name: [] for name in self._said}
        self._calls = []
        return said


def text_until(reading: Reading, write: Callable[[str], None], marks: Collection[str]) -> Parsing[str]:
    """Read text up to the first of some marks, and write it. Returns the mark; empty at the end of the answer."""
    pending = ""
    while character := (yield from reading.next()):
        pending += character
        while pending and not any(mark.startswith(pending) for mark in marks):
            write(pending[0])
            pending = pending[1:]
        if pending in marks:
            return pending
    if pending and not reading.is_cut_off:
        write(pending)
    return ""


def literally(reading: Reading, text: str) -> Parsing[bool]:
    """Read `text` if the answer goes on with it. Returns whether it does."""
    at = reading.at
    for expected in text:
        if (yield from reading.next()) != expected:
            reading.back_to(at)
            if reading.is_cut_off:
                reading.drop_rest()
            return False
    return True


def spaces(reading: Reading) -> Parsing[None]:
    """Read all spaces up to the next other character."""
    at = reading.at
    while (yield from reading.next()).isspace():
        at = reading.at
    reading.back_to(at)


def closing(reading: Reading, text: str) -> Parsing[bool]:
    """Read spaces and then `text`, if the answer goes on with them. Returns whether it does."""
    at = reading.at
    yield from spaces(reading)
    found = yield from literally(reading, text)
    if not found:
        reading.back_to(at)
    return found


def section(
    reading: Reading, mark: str, begin: str, end: str, call: Callable[[Reading], Parsing[bool]]
) -> Parsing[None]:
    """Read calls one after another, after the mark that begins the section of all calls.

    Args:
        reading: the state.
        mark: the mark that was read. It becomes content if no call follows.
        begin: the mark that begins each call.
        end: the mark that ends the section.
        call: reads the rest of one call, and returns whether it is a call. If not, the text read becomes content.
    """
    at = reading.at
    while (yield from closing(reading, begin)):
        if not (yield from call(reading)):
            reading.content(mark + reading.since(at))
            return
        mark, at = "", reading.at
    if mark:
        reading.content(mark)
    yield from closing(reading, end)


def listed(reading: Reading, mark: str, end: str, call: Callable[[Reading], Parsing[bool]]) -> Parsing[None]:
    """Read calls as a list in brackets, after the mark that begins the list.

    Args:
        reading: the state.
        mark: the mark that was read. It becomes content if no call follows.
        end: the mark that ends the list; empty if there is none.
        call: reads one call, and returns whether it is a call. If not, the text read becomes content.
    """
    at = reading.at
    if not (yield from closing(reading, "[")) or not (yield from call(reading)):
        reading.content(mark + reading.since(at))
        return
    reading.end_calls()  # if there may be only one call, nothing need follow it
    while (yield from closing(reading, ",")):
        at = reading.at
        if not (yield from call(reading)):
            reading.content(reading.since(at))
            return
    yield from closing(reading, "]")
    yield from closing(reading, end)


class Reader:
    """Reads an answer that arrives in pieces.

    Args:
        reading: the state.
        parsing: the generator that reads the characters, and changes `reading`.
    """

    def __init__(self, reading: Reading, parsing: Parsing[None]) -> None:
        self._reading = reading
        self._parsing = parsing
        self._has_ended = next(parsing, True) is True

    @property
    def is_over(self) -> bool:
        """Whether the only allowed call is complete, so that all later text is left out."""
        return self._reading.is_over

    def feed(self, text: str) -> Delta:
        """Read a piece of the answer. Returns the new parts of the message."""
        for character in text:
            self._parsing.send(character)
        return self._reading.take()

    def end(self) -> Delta:
        """End the answer. Returns the last parts of the message."""
        try:
            while not self._has_ended:
                self._parsing.send("")
        except StopIteration:
            self._has_ended = True
        self._reading.end()
        return self._reading.take()


def nothing(reading: Reading, mark: str) -> Parsing[None]:
    """Read nothing behind a mark."""
    yield from ()


def addressed(reading: Reading, *, message: Callable[[Reading, str], Parsing[None]]) -> Parsing[None]:
    """Read a message at the beginning of an answer, if it says to whom it is: the prompt has its first mark."""
    at = reading.at
    is_message = yield from literally(reading, " to=")
    reading.back_to(at)
    if is_message:
        yield from message(reading, "")
