"""The statistics of an evaluation, against scipy, published examples and exact enumeration."""

from __future__ import annotations

import itertools
import math

import pytest
from scipy import stats

from specllama.evidence.eval import Accuracy, compare_accuracy
from specllama.evidence.eval.accuracy import detectable_difference, mcnemar, paired_interval


@pytest.mark.parametrize(("correct", "total"), [(0, 1), (1, 1), (0, 20), (20, 20), (7, 20), (61, 100), (1, 5000)])
def test_wilson_interval(correct: int, total: int) -> None:
    found = Accuracy.of(correct, total)
    expected = stats.binomtest(correct, total).proportion_ci(0.95, method="wilson")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert 0 <= found.low <= found.rate == correct / total <= found.high <= 1


@pytest.mark.parametrize(("first", "second"), list(itertools.product([0, 1, 5, 12, 30], repeat=2)))
def test_mcnemar_is_the_binomial_test(first: int, second: int) -> None:
    expected = stats.binomtest(first, first + second).pvalue if first + second else 1.0
    assert mcnemar(first, second) == pytest.approx(expected, rel=1e-12)


def test_mcnemar_by_hand() -> None:
    assert mcnemar(0, 5) == 2 / 32
    assert mcnemar(6, 0) == 2 / 64
    assert mcnemar(1, 3) == 2 * (1 + 4) / 16
    assert mcnemar(2, 2) == 1.0  # twice a tail of 11/16


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        # Altman et al., Statistics with Confidence (2000), Table 6.2.
        ((14, 5, 0, 22), (0.011, 0.226)),
        # Fagerland, Lydersen, Laake, Statistical Analysis of Contingency Tables (2017), ch. 8: Cavo, Bentur.
        ((59, 6, 16, 80), (-0.1186, -0.0046)),
        ((1, 1, 7, 12), (-0.507, -0.026)),
    ],
)
def test_paired_interval_of_published_examples(table: tuple[int, int, int, int], expected: tuple[float, float]) -> None:
    assert paired_interval(*table) == pytest.approx(expected, abs=6e-4)


def test_paired_interval_of_a_negative_correlation_by_hand() -> None:
    # 5 and 5 of 10 right, never the same ones: phi is -1, and the sides of the triangle add up.
    low, high = 0.23659309, 0.76340691  # Wilson's ends for 5 of 10
    assert paired_interval(0, 5, 5, 0) == pytest.approx((-(0.5 - low) - (high - 0.5), high - 0.5 + 0.5 - low), abs=1e-7)


@pytest.mark.parametrize("table", list(itertools.product([0, 1, 4], repeat=4))[1:])
def test_paired_interval_holds_the_difference_and_mirrors(table: tuple[int, int, int, int]) -> None:
    a, b, c, d = table
    low, high = paired_interval(a, b, c, d)
    assert -1 - 1e-12 <= low <= (b - c) / sum(table) <= high <= 1 + 1e-12
    assert paired_interval(a, c, b, d) == pytest.approx((-high, -low), abs=1e-12)


def test_compare_counts_pairs() -> None:
    plain = [True] * 5 + [True] * 3 + [False] * 1 + [False] * 2
    speculative = [True] * 5 + [False] * 3 + [True] * 1 + [False] * 2
    found = compare_accuracy(plain, speculative)
    assert (found.both, found.only_plain, found.only_speculative, found.neither) == (5, 3, 1, 2)
    assert (found.plain.correct, found.speculative.correct, found.num_questions) == (8, 6, 11)
    assert found.difference == pytest.approx(-2 / 11)
    assert (found.difference_low, found.difference_high) == pytest.approx(paired_interval(5, 1, 3, 2))
    assert found.p_value == mcnemar(3, 1)
    assert found.to_dict()["plain"]["rate"] == 8 / 11


def test_sentences() -> None:
    worse = compare_accuracy([True] * 20, [True] * 12 + [False] * 8)
    assert worse.differ
    assert (
        "The accuracies differ at the 5% level: of 20 questions, 8 came out right only without the draft, 0 only"
        in worse.sentence
    )
    assert "p = 0.0078" in worse.sentence
    same = compare_accuracy([True, False] * 50, [True, False] * 50)
    assert not same.differ
    assert "do not differ" in same.sentence
    assert same.detectable_difference is not None
    assert f"100 show a true difference of {100 * same.detectable_difference:.1f} points" in same.sentence
    few = compare_accuracy([True] * 5, [False] * 5)
    assert not few.differ  # five questions cannot show it
    assert "5 are too few to show any difference" in few.sentence


def test_bad_sequences() -> None:
    with pytest.raises(ValueError, match="2 plain and 1 speculative"):
        compare_accuracy([True, False], [True])
    with pytest.raises(ValueError, match="at least one"):
        compare_accuracy([], [])


def power(total: int, discordant: float, difference: float) -> float:
    """How often McNemar's exact test finds a true difference, by enumeration."""
    share = (discordant + difference) / (2 * discordant)
    return sum(
        stats.binom.pmf(m, total, discordant)
        * sum(stats.binom.pmf([k for k in range(m + 1) if mcnemar(k, m - k) < 0.05], m, share))
        for m in range(total + 1)
    )


@pytest.mark.parametrize(("total", "discordant"), [(100, 0.3), (200, 0.25), (200, 0.5), (60, 0.0)])
def test_detectable_difference_is_found_four_times_in_five(total: int, discordant: float) -> None:
    difference = detectable_difference(total, discordant)
    assert difference is not None
    # The formula is an approximation; the exact test finds a little less.
    assert 0.70 < power(total, max(discordant, difference), difference) < 0.85
    assert power(total, max(discordant, difference), difference / 2) < 0.5


def test_detectable_difference_of_few_questions() -> None:
    assert detectable_difference(5, 0.5) is None
    assert mcnemar(0, 5) > 0.05 > mcnemar(0, 6)
    smallest = detectable_difference(6, 0.0)
    assert smallest is not None
    assert 0.5 < smallest <= 1.0
    assert math.isclose(detectable_difference(10**6, 0.2) or 0, (1.959964 + 0.841621) * math.sqrt(0.2e-6), rel_tol=1e-3)
