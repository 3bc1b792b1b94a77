"""The table of all forms of calls, and which of them a chat template teaches."""

from __future__ import annotations

import functools

from .deepseek import DEEPSEEK, DEEPSEEK_FENCED
from .format import Format, Pieces
from .gemma import FUNCTION_GEMMA, GEMMA4
from .glm import GLM
from .harmony import HARMONY
from .hermes import HERMES
from .kimi import KIMI
from .lfm2 import LFM2
from .listed import APRIEL, COHERE, GRANITE3, NEMOTRON2
from .llama3 import LLAMA3
from .minicpm import MINICPM
from .minimax import MINIMAX
from .mistral import MISTRAL, MISTRAL_LIST
from .muse import MUSE
from .qwen_xml import QWEN_XML, SEED
from .reading import Parsing, Reading, literally, spaces, text_until
from .thinking import read_thought, thoughts_in

FORMATS = (
    HARMONY,
    MUSE,
    DEEPSEEK,
    DEEPSEEK_FENCED,
    MISTRAL,
    MISTRAL_LIST,
    GEMMA4,
    FUNCTION_GEMMA,
    KIMI,
    MINIMAX,
    GLM,
    QWEN_XML,
    SEED,
    MINICPM,
    NEMOTRON2,
    GRANITE3,
    APRIEL,
    COHERE,
    HERMES,
    LLAMA3,
    LFM2,
)
"""All forms, in the order of trial: the first one that a chat template teaches is taken."""


@functools.lru_cache(maxsize=32)
def taught_by(template: str) -> tuple[Format | None, tuple[Pieces, Pieces] | None]:
    """The form of calls that a chat template teaches, and its marks of thoughts. Each is None if there is none."""
    found = next((form for form in FORMATS if form.is_in(template)), None)
    return found, found.thoughts if found is not None and found.thoughts else thoughts_in(template)


def says_calls(template: str) -> Format | None:
    """The form of calls, if a chat template has the calls of earlier messages in their texts; otherwise None."""
    form = taught_by(template)[0]
    return form if form is not None and form.says is not None and "tool_calls" not in template else None


def read_answer(
    reading: Reading,
    form: Format | None,
    thoughts: tuple[Pieces, Pieces] | None = None,
    *,
    is_thinking: bool = False,
    is_free: bool = True,
) -> Parsing[None]:
    """Read a whole answer.

    Args:
        reading: the answer.
        form: the form of the answer's calls; None if there are no calls.
        thoughts: the marks around a thought before the answer; None if there are no thoughts.
        is_thinking: whether the prompt has begun the thought.
        is_free: whether the model may write anything. If a grammar prescribes the answer, there are calls only if the
            answer begins with one: other JSON, and marks in its texts, are no calls.
    """
    if thoughts is not None:
        yield from read_thought(reading, thoughts, is_thinking)
    if form is not None and not is_free and not (yield from _begins_call(reading, form)):
        form = None
    if form is not None and form.at_start is not None and (is_free or not _is_marked(form)):
        yield from form.at_start(reading)
        reading.end_calls()
    openings = form.openings if form is not None else {}
    while mark := (yield from text_until(reading, reading.content, openings)):
        yield from openings[mark](reading, mark)
        reading.end_calls()


def _is_marked(form: Format) -> bool:
    """Whether a mark begins each call."""
    return form.written is not None and bool(form.written.trigger)


def _begins_call(reading: Reading, form: Format) -> Parsing[bool]:
    """Whether a call is next in the text, or the mark of an answer. The text is read again afterwards."""
    at, written = reading.at, form.written
    named = [] if written is None or _is_marked(form) else [written.before(name) for name in reading.tools]
    yield from spaces(reading)
    for begin in (*form.openings, *("".join(pieces).lstrip() for pieces in (*named, form.answer))):
        if begin and (yield from literally(reading, begin)):
            reading.back_to(at)
            return True
    reading.back_to(at)
    return False
