"""Small multiplications, answered plainly and speculatively: is a draft's answer as good?"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specllama.prompts import Prompt

from .evaluation import Evaluation, OnRecord
from .grades import EvalResult, Grade

if TYPE_CHECKING:
    from specllama import Llama

NAME = "multiply"

Shape = tuple[int, int]
"""The numbers of digits of the two factors."""
SHAPES: tuple[Shape, ...] = ((2, 1), (2, 2))
MAX_DIGITS = 9

_MAX_ANSWER_DIGITS = 100  # Python refuses to read thousands of digits, which a model may well write.
# The ways in which people and models separate thousands: 1,081 1_081 1'081 1 081 (also with narrow and fixed spaces),
# and in LaTeX 1{,}081 or 1\,081.
_SEPARATOR = r"(?:,|_|'|’|[ \u00a0\u2009\u202f]|\{,\}|\\,)"
_NUMBER = re.compile(
    rf"(?P<sign>(?<![\w)])[-−])?(?P<whole>\d{{1,3}}(?:{_SEPARATOR}\d{{3}})+(?!\d)|\d+)(?:\.(?P<fraction>\d+))?"
)


def multiply(
    llm: Llama,
    count: int = 200,
    *,
    shapes: Sequence[Shape] = SHAPES,
    seed: int = 0,
    temperature: float = 1.0,
    max_tokens: int = 32,
    on_record: OnRecord | None = None,
    **options: Any,
) -> EvalResult:
    """Ask small multiplications both ways, in chat form, and compare how many answers are right.

    The answers are sampled, by default at temperature 1, because that is where a wrong acceptance rule shows. To keep
    the answers of an interrupted evaluation, use ``Evaluation``.

    Args:
        llm: a target with its draft.
        count: the number of questions.
        shapes: the numbers of digits of the factors; they take turns.
        seed: the seed of the questions and of all answers.
        temperature: the temperature; 0 is greedy.
        max_tokens: the most tokens of an answer.
        on_record: called with each question and its answers, how many questions are done, and how many there are.
        options: the other arguments of ``Evaluation``.

    Raises:
        ValueError: no draft, an option out of range, or more questions than there are.
    """
    options = {"seed": seed, "temperature": temperature, "max_tokens": max_tokens, **options}
    return Evaluation(llm, NAME, questions(count, shapes, seed), grade, **options).run(on_record)


def questions(count: int, shapes: Sequence[Shape] = SHAPES, seed: int = 0) -> list[Prompt]:
    """Distinct multiplications as questions; 23 * 47 and 47 * 23 count as one.

    Factors of one digit are 2 to 9, because multiplying by 0 or 1 is too easy.

    Args:
        count: the number of questions.
        shapes: the numbers of digits of the factors. They take turns; a shape that is used up is left out.
        seed: the same seed gives the same questions. A smaller count gives the first of them.

    Raises:
        ValueError: a count above the number of different questions, or digits out of range.
    """
    kinds = list(dict.fromkeys((max(shape), min(shape)) for shape in shapes))
    for shape in kinds:
        if not 1 <= shape[1] <= shape[0] <= MAX_DIGITS:
            raise ValueError(f"factors of {shape[0]} and {shape[1]} digits: give 1 to {MAX_DIGITS} for each")
    room = {shape: _how_many(shape) for shape in kinds}
    if not 1 <= count <= sum(room.values()):
        names = ", ".join(f"{a}x{b}" for a, b in kinds) or "none"
        raise ValueError(
            f"{count} questions: there are {sum(room.values())} of the digits {names}; "
            "ask for 1 up to so many, or for other digits"
        )
    rng = random.Random(seed)
    seen: set[tuple[int, int]] = set()
    prompts: list[Prompt] = []
    while len(prompts) < count:
        for shape in [shape for shape in kinds if room[shape]][: count - len(prompts)]:
            room[shape] -= 1
            prompts.append(_question(shape, rng, seen))
    return prompts


def parse(text: str) -> int | None:
    """The integer that is the last number of an answer; None if its last number is not an integer, or there is none.

    Thousands may be separated, and a fraction may be zero (1,081.00). The decimal point is English.
    """
    numbers = list(_NUMBER.finditer(text))
    if not numbers:
        return None
    last = numbers[-1]
    if (last["fraction"] or "").strip("0"):
        return None
    digits = "".join(re.findall(r"\d", last["whole"]))
    if len(digits) > _MAX_ANSWER_DIGITS:
        return None
    return -int(digits) if last["sign"] else int(digits)


def grade(prompt: Prompt, text: str) -> Grade:
    """Whether the number that an answer ends with is the product."""
    found = parse(text)
    if found is None:
        return Grade(False, "no number")
    correct = found == prompt.task["expected"]
    return Grade(correct, "right" if correct else "wrong", str(found))


def _range(digits: int) -> range:
    return range(2 if digits == 1 else 10 ** (digits - 1), 10**digits)


def _how_many(shape: Shape) -> int:
    first, second = len(_range(shape[0])), len(_range(shape[1]))
    return first * (first + 1) // 2 if shape[0] == shape[1] else first * second


def _question(shape: Shape, rng: random.Random, seen: set[tuple[int, int]]) -> Prompt:
    while True:
        a, b = (rng.choice(_range(digits)) for digits in shape)
        if (max(a, b), min(a, b)) not in seen:
            break
    seen.add((max(a, b), min(a, b)))
    text = f"What is {a} * {b}? Answer with the number only."
    return Prompt(f"{a}*{b}", f"{shape[0]}x{shape[1]}", text, task={"expected": a * b})
