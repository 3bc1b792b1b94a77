"""Thoughts: what stands between two marks at the beginning of an answer."""

from __future__ import annotations

from .format import Pieces
from .reading import Parsing, Reading, literally, spaces, text_until

THOUGHTS: tuple[tuple[str, str], ...] = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|channel>thought", "<channel|>"),  # Gemma 4
    ("<seed:think>", "</seed:think>"),
)


def thoughts_in(template: str) -> tuple[Pieces, Pieces] | None:
    """The marks of thoughts that a chat template knows."""
    for begin, end in THOUGHTS:
        if end in template and (begin in template or begin.removesuffix("thought") in template):
            return (begin,), (end,)
    return None


def is_open(prompt: str, thoughts: tuple[Pieces, Pieces]) -> bool:
    """Whether the end of a prompt begins a thought."""
    return prompt.rstrip().endswith("".join(thoughts[0]))


def read_thought(reading: Reading, thoughts: tuple[Pieces, Pieces], is_begun: bool) -> Parsing[None]:
    """Reads a thought, if the answer begins with one."""
    at = reading.at
    yield from spaces(reading)
    found = yield from literally(reading, "".join(thoughts[0]))  # a model may repeat what the prompt begins with
    if not found and not is_begun:
        reading.back_to(at)
        return
    reading.begin_thought()
    yield from text_until(reading, reading.thought, ("".join(thoughts[1]),))
    reading.end_thought()
