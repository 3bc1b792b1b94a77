"""Calls as ``call:NAME{key:value}`` between marks: Gemma 4 and FunctionGemma. Strings have marks in place of quotes."""

from __future__ import annotations

import json
from collections.abc import Callable

from .format import Format, Written
from .json_calls import escaped, json_or_string
from .marked import Marked
from .reading import Parsing, Reading, closing, literally, spaces, text_until


def _calls(name: str, begin: str, end: str, quote: str) -> Format:
    def called(reading: Reading, mark: str) -> Parsing[None]:
        at = reading.at
        words: list[str] = []
        found = ""
        if (yield from closing(reading, "call:")):
            found = yield from text_until(reading, words.append, ("{", end))
        if found != "{" or not "".join(words).strip():
            reading.content(mark + reading.since(at))
            return
        reading.back_to(reading.at - 1)
        reading.call("".join(words).strip())
        yield from _value(reading, reading.arguments, quote, end)
        yield from closing(reading, end)

    written = Written(
        lambda called: (begin, f"call:{called}{{"),
        ("}", end),
        trigger=begin,
        arguments=lambda schema, grammar: Marked(schema, quote, grammar).members(schema),
    )
    return Format(name, lambda template: begin in template, {begin: called}, marks=(end, quote), written=written)


def _value(reading: Reading, write: Callable[[str], None], quote: str, end: str) -> Parsing[None]:
    """Read a value in Gemma's form, and write it as JSON."""
    yield from spaces(reading)
    if (yield from literally(reading, quote)):
        write('"')
        if (yield from text_until(reading, lambda text: write(escaped(text)), (quote,))):
            write('"')
        return
    for bracket, closed in (("{", "}"), ("[", "]")):
        if (yield from literally(reading, bracket)):
            yield from _members(reading, write, quote, end, bracket, closed)
            return
    word: list[str] = []
    found = yield from text_until(reading, word.append, (",", "}", "]", end))
    reading.back_to(reading.at - len(found))
    text = "".join(word).strip()
    write(json_or_string(text) if found else text)


def _members(
    reading: Reading, write: Callable[[str], None], quote: str, end: str, bracket: str, closed: str
) -> Parsing[None]:
    write(bracket)
    is_first = True
    while not (yield from closing(reading, closed)):
        yield from closing(reading, ",")
        at = reading.at
        is_over = not (yield from reading.next())
        reading.back_to(at)
        if is_over or (yield from closing(reading, end)):
            reading.back_to(at)
            return
        comma = "" if is_first else ", "
        is_first = False
        if bracket == "{":
            yield from spaces(reading)
            key: list[str] = []
            behind: list[str] = []  # the text between a key in quotes and the colon
            is_quoted = yield from literally(reading, quote)
            if is_quoted:
                yield from text_until(reading, key.append, (quote,))
            if not (yield from text_until(reading, behind.append if is_quoted else key.append, (":",))):
                return
            write(f"{comma}{json.dumps(''.join(key).strip(), ensure_ascii=False)}: ")
        else:
            write(comma)
        yield from _value(reading, write, quote, end)
        if reading.at == at:  # nothing was read: a bracket that closes another list or object stands here
            return
    write(closed)


GEMMA4 = _calls("gemma4", "<|tool_call>", "<tool_call|>", '<|"|>')
FUNCTION_GEMMA = _calls("function-gemma", "<start_function_call>", "<end_function_call>", "<escape>")
