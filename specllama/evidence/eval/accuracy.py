"""Whether two ways of answering the same questions are equally often right."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from specllama.evidence.statistics import LEVEL, detectable_difference, interval, mcnemar, paired_interval


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """A share of right answers, with its 95% Wilson interval."""

    correct: int
    total: int
    rate: float
    low: float
    high: float

    @classmethod
    def of(cls, correct: int, total: int) -> Accuracy:
        """The share and its interval."""
        return cls(correct, total, correct / total, *interval(correct, total))


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two ways of answering the same questions. Rates and differences are shares, from 0 to 1."""

    num_questions: int
    plain: Accuracy
    speculative: Accuracy
    both: int
    """Questions that both ways got right."""
    only_plain: int
    only_speculative: int
    neither: int
    difference: float
    """Speculative minus plain."""
    difference_low: float
    difference_high: float
    p_value: float
    """McNemar's exact test, two-sided."""
    detectable_difference: float | None
    """The smallest true difference that so many questions find four times in five; None if they cannot find any."""

    @property
    def differ(self) -> bool:
        """Whether the accuracies differ at the 5% level."""
        return self.p_value < LEVEL

    @property
    def sentence(self) -> str:
        """What this says, in words."""
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

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**dataclasses.asdict(self), "differ": self.differ, "sentence": self.sentence}


def compare_accuracy(plain: Sequence[bool], speculative: Sequence[bool]) -> Comparison:
    """Compare two ways of answering.

    Args:
        plain: for each question, whether plain decoding got it right.
        speculative: the same of speculative decoding, in the same order.

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
