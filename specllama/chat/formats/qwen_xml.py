"""Calls as ``<function=NAME><parameter=KEY>VALUE</parameter></function>``: Qwen3-Coder, Qwen3.5, Seed-OSS.

Each call stands in ``<tool_call>``, or in ``<seed:tool_call>``.
"""

from __future__ import annotations

from .format import Format, Regex, Written
from .keyed import Keyed
from .reading import Parsing, Reading, closing, text_until

_FUNCTION, _FUNCTION_END = "<function=", "</function>"


def _calls(name: str, begin: str, end: str, *, breaks: bool) -> Format:
    parameters = Keyed("<parameter=", ">", "</parameter>", breaks=breaks)

    def called(reading: Reading, mark: str) -> Parsing[None]:
        at = reading.at
        if mark == begin and not (yield from closing(reading, _FUNCTION)):
            reading.content(mark)
            return
        words: list[str] = []
        found = yield from text_until(reading, words.append, (">",))
        function = "".join(words).strip()
        if not found or not function:
            reading.content(mark + reading.since(at))
            return
        reading.call(function)
        yield from parameters.read(reading, function, (_FUNCTION_END, end))
        yield from closing(reading, end)

    return Format(
        name,
        lambda template: all(mark in template for mark in (begin, _FUNCTION, parameters.before)),
        {begin: called, _FUNCTION: called},
        marks=(end,),
        written=Written(
            before=lambda function: (begin, f"\n{_FUNCTION}{function}>\n"),
            after=(f"{_FUNCTION_END}\n", end),
            between=(Regex(r"\n?"),),
            trigger=begin,
            arguments=parameters.written,
        ),
    )


QWEN_XML = _calls("qwen-xml", "<tool_call>", "</tool_call>", breaks=True)
SEED = _calls("seed", "<seed:tool_call>", "</seed:tool_call>", breaks=False)
