"""How two ways of answering are compared: against published examples, by hand and by enumeration."""

from __future__ import annotations

import itertools
import math

import pytest
from needed import imported

from specllama.evidence.eval import Comparison, compare_accuracy

stats = imported("scipy.stats")


def compared(both: int, only_plain: int, only_speculative: int, neither: int) -> Comparison:
    """So many questions that both ways, one of them, or none got right."""
    plain = [True] * (both + only_plain) + [False] * (only_speculative + neither)
    speculative = [True] * both + [False] * only_plain + [True] * only_speculative + [False] * neither
    return compare_accuracy(plain, speculative)


def test_pairs_are_counted() -> None:
    found = compared(5, 3, 1, 2)
    assert (found.both, found.only_plain, found.only_speculative, found.neither) == (5, 3, 1, 2)
    assert (found.plain.correct, found.speculative.correct, found.num_questions) == (8, 6, 11)
    assert found.difference == pytest.approx(-2 / 11)
    assert found.to_dict()["plain"]["rate"] == 8 / 11


@pytest.mark.parametrize(
    ("correct", "wrong", "expected"),
    # Newcombe, Statistics in Medicine 17 (1998), table I, method 3: Wilson's score interval.
    [(81, 182, (0.2553, 0.3662)), (15, 133, (0.0624, 0.1605)), (0, 20, (0.0, 0.1611)), (29, 0, (0.8830, 1.0))],
)
def test_intervals_of_published_examples(correct: int, wrong: int, expected: tuple[float, float]) -> None:
    found = compared(correct, 0, 0, wrong).plain
    assert (found.low, found.high) == pytest.approx(expected, abs=6e-5)
    assert found.low <= found.rate <= found.high


def test_mcnemar_by_hand() -> None:
    p_values = {(0, 5): 2 / 32, (6, 0): 2 / 64, (1, 3): 2 * (1 + 4) / 16, (2, 2): 1.0, (0, 0): 1.0}
    for lone, p_value in p_values.items():
        assert compared(3, *lone, 1).p_value == pytest.approx(p_value)


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        # Altman et al., Statistics with Confidence (2000), Table 6.2.
        ((14, 5, 0, 22), (0.011, 0.226)),
        # Fagerland, Lydersen, Laake, Statistical Analysis of Contingency Tables (2017), ch. 8: Cavo, Bentur.
        ((59, 6, 16, 80), (-0.1186, -0.0046)),
        ((1, 1, 7, 12), (-0.507, -0.026)),
        # By hand. 5 and 5 of 10 right, never the same ones: phi is -1, and the sides of the triangle add up. They are
        # twice those from 0.5 to Wilson's ends, 0.2366 and 0.7634.
        ((0, 5, 5, 0), (-0.5268, 0.5268)),
    ],
)
def test_intervals_of_published_differences(table: tuple[int, int, int, int], expected: tuple[float, float]) -> None:
    both, first, second, neither = table
    found = compared(both, second, first, neither)
    assert (found.difference_low, found.difference_high) == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize("table", list(itertools.product([0, 1, 4], repeat=4))[1:])
def test_the_interval_holds_the_difference_and_mirrors(table: tuple[int, int, int, int]) -> None:
    both, plain, speculative, neither = table
    found, mirrored = compared(*table), compared(both, speculative, plain, neither)
    assert -1 - 1e-12 <= found.difference_low <= found.difference <= found.difference_high <= 1 + 1e-12
    assert mirrored.difference_low == pytest.approx(-found.difference_high, abs=1e-12)
    assert mirrored.p_value == pytest.approx(found.p_value)


def test_sentences() -> None:
    worse = compared(12, 8, 0, 0)
    assert worse.differ
    assert (
        "The accuracies differ at the 5% level: of 20 questions, 8 came out right only without the draft, 0 only"
        in worse.sentence
    )
    assert "p = 0.0078" in worse.sentence
    same = compared(50, 0, 0, 50)
    assert not same.differ
    assert "do not differ" in same.sentence
    assert same.detectable_difference is not None
    assert f"100 show a true difference of {100 * same.detectable_difference:.1f} points" in same.sentence
    few = compared(0, 5, 0, 0)
    assert not few.differ  # five questions cannot show it
    assert few.detectable_difference is None
    assert "5 are too few to show any difference" in few.sentence
    assert compared(0, 6, 0, 0).differ


def test_bad_sequences() -> None:
    with pytest.raises(ValueError, match="2 plain and 1 speculative"):
        compare_accuracy([True, False], [True])
    with pytest.raises(ValueError, match="at least one"):
        compare_accuracy([], [])


def power(total: int, discordant: float, difference: float) -> float:
    """How often McNemar's exact test finds a true difference, by enumeration."""
    share = (discordant + difference) / (2 * discordant)
    found = 0.0
    for lone in range(1, total + 1):
        differ = [k for k in range(lone + 1) if 2 * stats.binom.cdf(min(k, lone - k), lone, 0.5) < 0.05]
        found += stats.binom.pmf(lone, total, discordant) * stats.binom.pmf(differ, lone, share).sum()
    return found


@pytest.mark.parametrize(("total", "lone"), [(100, 30), (200, 50), (200, 100), (60, 0), (6, 0)])
def test_a_detectable_difference_is_found_four_times_in_five(total: int, lone: int) -> None:
    difference = compared(total - lone, lone // 2, lone - lone // 2, 0).detectable_difference
    assert difference is not None and difference <= 1
    if total < 60:
        return  # too few for the formula, which is an approximation; the exact test finds a little less
    discordant = max(lone / total, difference)
    assert 0.70 < power(total, discordant, difference) < 0.85
    assert power(total, discordant, difference / 2) < 0.5


def test_a_detectable_difference_of_many_questions_by_hand() -> None:
    found = compared(80_000, 10_000, 10_000, 0).detectable_difference
    assert found == pytest.approx((1.959964 + 0.841621) * math.sqrt(0.2 / 100_000), rel=1e-3)
