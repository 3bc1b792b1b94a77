"""Thoughts: the text between two marks at the beginning of an answer."""

from __future__ import annotations

from .format import Pieces
from .reading import Parsing, Reading, literally, spaces, text_until

THOUGHTS: tuple[tuple[Pieces, Pieces], ...] = (
    (("<think>",), ("</think>",)),
    (("[THINK]",), ("[/THINK]",)),
    (("<|channel>", "thought"), ("<channel|>",)),  # Gemma 4
    (("<seed:think>",), ("</seed:think>",)),
    (("<|START_THINKING|>",), ("<|END_THINKING|>",)),
)


def thoughts_in(template: str) -> tuple[Pieces, Pieces] | None:
    """The marks of thoughts that a chat template has; None if it has none of `THOUGHTS`."""
    found = next((each for each in THOUGHTS if all(piece in template for piece in (*each[0], *each[1]))), None)
    # Some templates, as LFM2.5's, only remove thoughts from earlier answers, and for that have their end alone.
    return THOUGHTS[0] if found is None and THOUGHTS[0][1][0] in template else found


def is_open(prompt: str, thoughts: tuple[Pieces, Pieces]) -> bool:
    """Whether a prompt ends with the mark that begins a thought."""
    return prompt.rstrip().endswith("".join(thoughts[0]))


def is_closed(prompt: str, thoughts: tuple[Pieces, Pieces]) -> bool:
    """Whether a prompt ends with the mark that ends a thought. Then the model is not to think."""
    # Where another message follows a thought, as in gpt-oss's form, a prompt may end like this without any thought.
    return len(thoughts[1]) == 1 and prompt.rstrip().endswith(thoughts[1][0])


class Thinking:
    """Follows a growing text, and tells whether it is in a thought.

    Args:
        template: the chat template, which says what the marks are.
        prompt: the prompt that the text continues.
    """

    def __init__(self, template: str, prompt: str) -> None:
        thoughts = thoughts_in(template)
        self._marks = None if thoughts is None else ("".join(thoughts[0]), "".join(thoughts[1]))
        self._text = ""
        if self._marks is not None and thoughts is not None and is_open(prompt, thoughts):
            self._text = self._marks[0]

    def add(self, piece: str) -> bool:
        """Append a piece of text. Returns whether the piece belongs to a thought or to the marks around one."""
        if self._marks is None:
            return False
        begin, end = self._marks
        before = self._text
        self._text = (before + piece).lstrip()
        if end in before or not self._text:
            return False
        is_thought = self._text.startswith(begin) or begin.startswith(self._text)
        if not is_thought:
            self._marks = None
        return is_thought


def read_thought(reading: Reading, thoughts: tuple[Pieces, Pieces], is_begun: bool) -> Parsing[None]:
    """Read a thought if the answer begins with one, or if the prompt has begun one."""
    at = reading.at
    yield from spaces(reading)
    # A model may repeat the mark that ends the prompt.
    found = yield from literally(reading, "".join(thoughts[0]).lstrip())
    if not found and not is_begun:
        reading.back_to(at)
        return
    reading.begin_thought()
    yield from text_until(reading, reading.thought, ("".join(thoughts[1]),))
    reading.end_thought()
