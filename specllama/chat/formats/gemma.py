"""Calls as ``call:NAME{key:value}`` between marks: Gemma 4 and FunctionGemma. Strings have marks in place of quotes."""

from __future__ import annotations

from .format import Format, Written
from .json_calls import escaped
from .loose import Loose, Write
from .marked import Marked
from .reading import Parsing, Reading, closing, literally, text_until


def _calls(name: str, begin: str, end: str, quote: str) -> Format:
    def text(reading: Reading, write: Write) -> Parsing[bool]:
        if not (yield from literally(reading, quote)):
            return False
        write('"')
        if (yield from text_until(reading, lambda part: write(escaped(part)), (quote,))):
            write('"')
        return True

    values = Loose(text, end)

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
        yield from values.value(reading, reading.arguments)
        yield from closing(reading, end)

    written = Written(
        lambda called: (begin, f"call:{called}{{"),
        ("}", end),
        trigger=begin,
        arguments=lambda schema, grammar: Marked(schema, quote, grammar).members(schema),
    )
    return Format(name, lambda template: begin in template, {begin: called}, marks=(end, quote), written=written)


GEMMA4 = _calls("gemma4", "<|tool_call>", "<tool_call|>", '<|"|>')
FUNCTION_GEMMA = _calls("function-gemma", "<start_function_call>", "<end_function_call>", "<escape>")
