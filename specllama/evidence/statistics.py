"""The statistics of `verify` and `eval`, by scipy. Only these two tools need scipy."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

try:
    from scipy import optimize, stats
except ImportError as error:
    raise ImportError('verify and eval need scipy: pip install "specllama[evidence]"') from error

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

LEVEL = 0.05
"""The level of McNemar's test. Intervals have the confidence 1 - LEVEL."""
POWER = 0.8
"""The probability with which a detectable difference would be found."""

# McNemar's test cannot reach LEVEL with fewer questions on which only one way is right, even if it is always the same
# way: 2 / 2**5 is above LEVEL, and 2 / 2**6 below.
_FEWEST = 6
_CHUNK = 20_000


def interval(correct: int, total: int) -> tuple[float, float]:
    """The 95% Wilson interval of a share."""
    found = stats.binomtest(correct, total).proportion_ci(1 - LEVEL, method="wilson")
    return float(found.low), float(found.high)


def paired_interval(both: int, only_first: int, only_second: int, neither: int) -> tuple[float, float]:
    """The 95% interval of the difference of two paired shares, the first minus the second.

    Newcombe, "Improved confidence intervals for the difference between binomial proportions based on paired data",
    Statistics in Medicine 17 (1998), method 10: the distances from each share to the ends of its Wilson interval,
    joined as sides of a triangle whose angle is the correlation phi of the pairs.
    """
    a, b, c, d = both, only_first, only_second, neither
    total = a + b + c + d
    product = (a + b) * (c + d) * (a + c) * (b + d)
    covariance: float = a * d - b * c
    if covariance > 0:
        covariance = max(covariance - total / 2, 0.0)
    phi = covariance / math.sqrt(product) if product else 0.0

    def joined(x: float, y: float) -> float:
        return math.sqrt(max(x * x - 2 * phi * x * y + y * y, 0.0))

    first, second = (a + b) / total, (a + c) / total
    (first_low, first_high), (second_low, second_high) = interval(a + b, total), interval(a + c, total)
    difference = (b - c) / total
    low = difference - joined(first - first_low, second_high - second)
    high = difference + joined(second - second_low, first_high - first)
    return low, high


def mcnemar(only_first: int, only_second: int) -> float:
    """The two-sided p-value of McNemar's exact test of whether each way is right half of the times when only one is.

    McNemar, "Note on the sampling error of the difference between correlated proportions or percentages",
    Psychometrika 12 (1947).
    """
    total = only_first + only_second
    return float(stats.binomtest(only_first, total).pvalue) if total else 1.0


def detectable_difference(total: int, discordant: float) -> float | None:
    """The smallest true difference that McNemar's test finds at the 5% level with 80% power.

    Connor, "Sample size for testing differences in proportions for the paired-sample design", Biometrics 43 (1987):
    n = (z_alpha sqrt(psi) + z_beta sqrt(psi - d^2))^2 / d^2, solved for d. It is an approximation; the exact test
    needs a little more.

    Args:
        total: the number of questions.
        discordant: psi, the share of questions that only one way got right. A difference d needs at least psi = d.

    Returns:
        The difference; None if so few questions cannot show any.
    """
    z_alpha, z_beta = stats.norm.ppf(1 - LEVEL / 2), stats.norm.ppf(POWER)

    def too_few(difference: float) -> float:
        psi = max(discordant, difference)
        root = z_alpha * math.sqrt(psi) + z_beta * math.sqrt(psi - difference * difference)
        return float((root / difference) ** 2 - total)

    if total < _FEWEST:
        return None
    return float(optimize.brentq(too_few, 1e-9, 1.0))  # the function falls from infinity to z_alpha**2 < _FEWEST


@dataclasses.dataclass(frozen=True)
class Fit:
    """A comparison of counts with probabilities. Chance is simulated, so that small counts need no approximation."""

    total_variation: float
    chance_mean: float
    chance_95: float
    chi_square: float
    p_value: float


def goodness_of_fit(counts: Counts, probs: Floats, level: float) -> Fit:
    """Compare counts with the expectation by their probabilities.

    Args:
        counts: the counts [n].
        probs: the probabilities [n]; they sum to 1.
        level: the p-value at which the caller decides. There the standard error of the simulation is a fifth of it.
    """
    num_samples = int(counts.sum())
    expected = num_samples * probs

    def total_variation(counts: Counts, axis: int) -> Floats:
        return np.asarray(np.abs(counts - expected).sum(axis=axis) / (2 * num_samples))

    def chi_square(counts: Counts, axis: int) -> Floats:
        return np.asarray(stats.chisquare(counts, expected, axis=axis).statistic)

    def against_chance(statistic: Callable[[Counts, int], Floats]) -> Any:
        rng = np.random.default_rng(0)  # fixed, so that a rerun gives the same verdict
        return stats.monte_carlo_test(
            counts,
            lambda size: rng.multinomial(num_samples, probs, size=size[0]),
            statistic,
            n_resamples=math.ceil(25 / level),
            batch=_CHUNK,
            alternative="greater",
        )

    tv, chi = against_chance(total_variation), against_chance(chi_square)
    return Fit(
        total_variation=float(tv.statistic),
        chance_mean=float(tv.null_distribution.mean()),
        chance_95=float(np.quantile(tv.null_distribution, 0.95)),
        chi_square=float(chi.statistic),
        p_value=float(chi.pvalue),
    )
