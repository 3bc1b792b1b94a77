"""Whether two ways of answering the same questions are equally often right: intervals, a test, and its power."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Any

LEVEL = 0.05
"""Of the test; the intervals have 1 - LEVEL."""
POWER = 0.8
"""How often a difference of the size called detectable would be found."""

_Z = statistics.NormalDist().inv_cdf(1 - LEVEL / 2)
_Z_POWER = statistics.NormalDist().inv_cdf(POWER)
# Fewer questions that only one way got right, all of them the same one, and the test cannot reach LEVEL: 2 / 2**6 can.
_FEWEST = 6


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
        """The share and its interval.

        Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927): the shares
        that a score test does not reject, (p + z^2/2n ± z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n).
        """
        rate = correct / total
        centre = rate + _Z**2 / (2 * total)
        half = _Z * math.sqrt(rate * (1 - rate) / total + _Z**2 / (4 * total**2))
        scale = 1 + _Z**2 / total
        # At 0 and 1 one end is the rate itself, which rounding would miss.
        low = 0.0 if correct == 0 else (centre - half) / scale
        high = 1.0 if correct == total else (centre + half) / scale
        return cls(correct, total, rate, low, high)


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


def paired_interval(both: int, only_first: int, only_second: int, neither: int) -> tuple[float, float]:
    """95% interval of the difference of two paired shares, the first minus the second.

    Newcombe, "Improved confidence intervals for the difference between binomial proportions based on paired data",
    Statistics in Medicine 17 (1998), method 10: the distances from each share to the ends of its Wilson interval,
    joined as sides of a triangle whose angle is the correlation phi of the pairs.
    """
    a, b, c, d = both, only_first, only_second, neither
    total = a + b + c + d
    first, second = Accuracy.of(a + b, total), Accuracy.of(a + c, total)
    product = (a + b) * (c + d) * (a + c) * (b + d)
    covariance: float = a * d - b * c
    if covariance > 0:
        covariance = max(covariance - total / 2, 0.0)
    phi = covariance / math.sqrt(product) if product else 0.0

    def joined(x: float, y: float) -> float:
        return math.sqrt(max(x * x - 2 * phi * x * y + y * y, 0.0))

    difference = (b - c) / total
    low = difference - joined(first.rate - first.low, second.high - second.rate)
    high = difference + joined(second.rate - second.low, first.high - first.rate)
    return low, high


def mcnemar(only_first: int, only_second: int) -> float:
    """Two-sided p-value of McNemar's exact test.

    McNemar, "Note on the sampling error of the difference between correlated proportions or percentages",
    Psychometrika 12 (1947). If both ways are equally good, each question that only one of them got right is that
    one's with probability 1/2: twice the smaller tail of Binomial(b + c, 1/2), 1 at most.
    """
    total = only_first + only_second
    tail = sum(math.comb(total, k) for k in range(min(only_first, only_second) + 1))
    return min(1.0, 2 * tail / (1 << total))


def detectable_difference(total: int, discordant: float) -> float | None:
    """The smallest true difference that McNemar's test finds at the 5% level with 80% power.

    Connor, "Sample size for testing differences in proportions for the paired-sample design", Biometrics 43 (1987):
    n = (z_alpha sqrt(psi) + z_beta sqrt(psi - d^2))^2 / d^2, solved for d. It is an approximation; the exact test
    needs a little more.

    Args:
        total: questions.
        discordant: psi, the share of them that only one way got right; a difference d needs d at least.

    Returns:
        None where even questions that all come out differently would not be enough.
    """

    def needed(difference: float) -> float:
        psi = max(discordant, difference)
        root = _Z * math.sqrt(psi) + _Z_POWER * math.sqrt(psi - difference * difference)
        return (root / difference) ** 2

    if total < _FEWEST:
        return None
    low, high = 0.0, 1.0  # needed() falls from infinity to _Z**2, which is less than _FEWEST
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if needed(middle) <= total else (middle, high)
    return high
