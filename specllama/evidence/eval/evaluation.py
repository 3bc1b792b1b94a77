"""Asks every question plainly and speculatively, and grades both answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from specllama.engine import NumDraftTokens, checked_verify
from specllama.evidence.answer import answer
from specllama.evidence.compare import WAYS
from specllama.evidence.machine import describe_machine
from specllama.evidence.plan import checked_gamma, require_at_least, that_fit

from .grades import EvalResult, Grade, GradedAnswer, Record

if TYPE_CHECKING:
    from specllama import Llama
    from specllama.prompts import Prompt, RenderedPrompt

Grader = Callable[["Prompt", str], Grade]
"""A function that grades the text of an answer to a question."""
OnRecord = Callable[[Record, int, int], None]
"""Called with each question and its answers, how many questions are done, and how many there will be."""

_WARM_UP_TOKENS = 4


class Evaluation:
    """Has questions answered both ways. If ``run`` is interrupted, the answers so far stay.

    The way that goes first changes from question to question, so that a machine that slows down slows both ways. Both
    answers to a question are drawn independently: each has a seed of its own, derived from `seed`, the question and the
    way. With one seed for both, the rule ``coupled`` would give one text twice, and the comparison could find nothing.

    The caches are not emptied between questions: a prompt is decoded from where it differs from the one before.

    Args:
        llm: a target with its draft.
        name: the name of the result.
        prompts: the questions.
        grade: grades an answer.
        seed: the seed from which the seeds of all answers are derived.
        max_tokens: the most tokens of an answer.
        verify: the acceptance rule of the speculative answers.
        sampling: other options of ``create_completion``, for both ways; ``num_draft_tokens`` is for speculation.

    Raises:
        ValueError: no draft, no questions, an option out of range, or a question that does not fit into the context.
    """

    def __init__(
        self,
        llm: Llama,
        name: str,
        prompts: Sequence[Prompt],
        grade: Grader,
        *,
        max_tokens: int,
        seed: int = 0,
        verify: str = "block",
        num_draft_tokens: NumDraftTokens | None = None,
        **sampling: Any,
    ) -> None:
        require_at_least(1, max_tokens=max_tokens)
        options = {"max_tokens": max_tokens, **sampling}
        gamma = checked_gamma(llm, num_draft_tokens)
        speculation = {"num_draft_tokens": gamma, "verify": checked_verify(verify)}
        self._questions, problem = that_fit(llm, prompts, max_tokens)
        if problem:
            raise ValueError(problem)
        self._llm = llm
        self._name = name
        self._seed = seed
        self._grade = grade
        self._options: dict[str, dict[str, Any]] = {
            "plain": {**options, "num_draft_tokens": 0},
            "speculative": {**options, **speculation},
        }
        self._settings = {"num_questions": len(prompts), "seed": seed, **options, **speculation}
        self.records: list[Record] = []
        """The questions that were answered both ways."""

    def run(self, on_record: OnRecord | None = None) -> EvalResult:
        """Ask all questions."""
        for options in self._options.values():  # a warm-up: weights are read from the disk at first use
            warm_up = {**options, "max_tokens": _WARM_UP_TOKENS}
            answer(self._llm, self._questions[0][1], seed=self._seed, **warm_up)
        for index, (prompt, rendered) in enumerate(self._questions):
            order = WAYS if index % 2 == 0 else WAYS[::-1]
            graded = {way: self._ask(prompt, rendered, way) for way in order}
            self.records.append(Record(prompt, **graded))
            if on_record is not None:
                on_record(self.records[-1], len(self.records), len(self._questions))
        return self.result()

    def result(self) -> EvalResult:
        """The result so far. The Llama must still be open."""
        return EvalResult(
            name=self._name,
            records=list(self.records),
            settings=dict(self._settings),
            machine=describe_machine(self._llm),
            interrupted=len(self.records) < len(self._questions),
        )

    def _ask(self, prompt: Prompt, rendered: RenderedPrompt, way: str) -> GradedAnswer:
        seed = seed_of(self._seed, prompt.id, way)
        given = answer(self._llm, rendered, seed=seed, **self._options[way])
        return GradedAnswer(given.text, given.finish_reason, seed, self._grade(prompt, given.text), given.stats)


def seed_of(seed: int, question: str, way: str) -> int:
    """The seed of one answer, from 0 to 2**31 - 1. The two seeds of a question differ: one is even, one is odd."""
    return 2 * random.Random(f"{seed} {question} {way}").getrandbits(30) + WAYS.index(way)
