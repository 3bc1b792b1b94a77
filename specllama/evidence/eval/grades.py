"""The result of an evaluation, as data."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

from specllama.evidence.compare import WAYS
from specllama.evidence.data import Data, Result, total
from specllama.evidence.statistics import LEVEL, detectable_difference, interval, mcnemar, paired_interval
from specllama.prompts import Prompt
from specllama.stats import Stats


@dataclasses.dataclass(frozen=True)
class Accuracy(Data):
    """A share of right answers, with its 95% Wilson interval."""

    correct: int
    total: int
    rate: float
    low: float
    high: float

    @classmethod
    def of(cls, correct: int, total: int) -> Accuracy:
        """Compute the share and its interval."""
        return cls(correct, total, correct / total, *interval(correct, total))


@dataclasses.dataclass(frozen=True)
class Comparison(Data):
    """A comparison of two ways of answering the same questions. Rates and differences are shares, from 0 to 1."""

    computed = ("differ", "sentence")

    num_questions: int
    plain: Accuracy
    speculative: Accuracy
    both: int
    """The number of questions that both ways got right."""
    only_plain: int
    only_speculative: int
    neither: int
    difference: float
    """The speculative accuracy minus the plain one."""
    difference_low: float
    difference_high: float
    p_value: float
    """The p-value of McNemar's exact test, two-sided."""
    detectable_difference: float | None
    """The smallest true difference that these questions find four times out of five; None if they are too few."""

    @property
    def differ(self) -> bool:
        """Whether the accuracies differ at the 5% level."""
        return self.p_value < LEVEL

    @property
    def sentence(self) -> str:
        """The comparison in words."""
        verdict = "differ" if self.differ else "do not differ"
        lone = f"{self.only_plain} came out right only without the draft, {self.only_speculative} only with it"
        if self.detectable_difference is None:
            power = f"{self.num_questions} are too few to show any difference."
        else:
            points = 100 * self.detectable_difference
            power = f"{self.num_questions} show a true difference of {points:.1f} points about four times in five."
        return (
            f"The accuracies {verdict} at the {LEVEL:.0%} level: of {self.num_questions} questions, {lone} "
            f"(McNemar's exact test, p = {self.p_value:.2g}). {power}"
        )


def compare_accuracy(plain: Sequence[bool], speculative: Sequence[bool]) -> Comparison:
    """Compare two ways of answering.

    Args:
        plain: for each question, whether plain decoding got it right.
        speculative: for each question, in the same order, whether speculative decoding got it right.

    Raises:
        ValueError: no questions, or sequences of different lengths.
    """
    if len(plain) != len(speculative):
        raise ValueError(f"{len(plain)} plain and {len(speculative)} speculative answers: each question needs both")
    if not plain:
        raise ValueError("no questions to compare: give at least one")
    pairs = list(zip(map(bool, plain), map(bool, speculative), strict=True))
    both, only_plain = pairs.count((True, True)), pairs.count((True, False))
    only_speculative, neither = pairs.count((False, True)), pairs.count((False, False))
    total = len(pairs)
    low, high = paired_interval(both, only_speculative, only_plain, neither)
    return Comparison(
        num_questions=total,
        plain=Accuracy.of(both + only_plain, total),
        speculative=Accuracy.of(both + only_speculative, total),
        both=both,
        only_plain=only_plain,
        only_speculative=only_speculative,
        neither=neither,
        difference=(only_speculative - only_plain) / total,
        difference_low=low,
        difference_high=high,
        p_value=mcnemar(only_plain, only_speculative),
        detectable_difference=detectable_difference(total, (only_plain + only_speculative) / total),
    )


@dataclasses.dataclass(frozen=True)
class Grade(Data):
    """The grade of an answer."""

    correct: bool
    outcome: str
    """One of ``right``, ``wrong``, ``no number``; for programs ``passed``, ``failed``, ``error``, ``timeout``."""
    detail: str = ""
    """The number read from the answer, or how its program ended."""


@dataclasses.dataclass(frozen=True)
class GradedAnswer(Data):
    """One answer and its grade."""

    text: str
    finish_reason: str
    """``stop``, or ``length`` if it ended at ``max_tokens``."""
    seed: int
    grade: Grade
    stats: Stats


@dataclasses.dataclass(frozen=True)
class Record(Data):
    """One question and both its answers."""

    prompt: Prompt
    plain: GradedAnswer
    speculative: GradedAnswer

    @property
    def expected(self) -> int | None:
        """The right number; None if the answer is not a number."""
        return self.prompt.task.get("expected")

    def to_dict(self) -> dict[str, Any]:
        """The record, ready for JSON, without the prompt's line in its file."""
        prompt = {"id": self.prompt.id, "category": self.prompt.category, "question": self.prompt.text}
        answers = {way: getattr(self, way).to_dict() for way in WAYS}
        return {**prompt, "expected": self.expected, **answers}


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalResult(Result):
    """Questions answered plainly and speculatively, and graded."""

    computed = ("comparison", "stats", "outcomes", "notes")

    name: str
    """``multiply`` or ``humaneval``."""
    records: list[Record]

    @property
    def comparison(self) -> Comparison | None:
        """Both accuracies, and whether they differ; None without questions."""
        if not self.records:
            return None
        return compare_accuracy(*([answer.grade.correct for answer in self.answers(way)] for way in WAYS))

    def answers(self, way: str) -> list[GradedAnswer]:
        """The answers of one way, ``plain`` or ``speculative``, in the order of the questions."""
        return [getattr(record, way) for record in self.records]

    @property
    def stats(self) -> dict[str, Stats]:
        """By way, the statistics of all answers together. Parts of prompts that were still in the cache were reused."""
        return {way: total(answer.stats for answer in self.answers(way)) for way in WAYS}

    @property
    def outcomes(self) -> dict[str, dict[str, int]]:
        """By way, how many answers had each outcome, the most frequent first."""
        counts = {way: collections.Counter(answer.grade.outcome for answer in self.answers(way)) for way in WAYS}
        return {way: dict(count.most_common()) for way, count in counts.items()}

    @property
    def notes(self) -> list[str]:
        """Notes that a reader of the figures needs."""
        found = []
        if self.settings.get("temperature") == 0:
            found.append(
                "At temperature 0 both ways give the same text, but for near-ties that batches of other sizes round "
                "differently: a temperature above 0 tests more."
            )
        cut = [sum(answer.finish_reason == "length" for answer in self.answers(way)) for way in WAYS]
        if any(cut):
            limit = self.settings["max_tokens"]
            found.append(f"Cut off after {limit} tokens: {cut[0]} plain and {cut[1]} speculative answers.")
        reasons = {answer.stats.fallback_reason for answer in self.answers("speculative")} - {None}
        return [
            *found,
            *(f"Speculative answers were decoded plainly: {reason}." for reason in sorted(map(str, reasons))),
        ]
