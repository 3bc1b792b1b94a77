"""Estimates how much faster a draft makes a target, from the costs of batches, without trying the draft."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Mapping

_ODD = 3.0
"""A measured cost may differ from the estimate by this factor. Beyond, it counts as disturbed, and is not used."""
_SMALL = 16  # the most tokens in a batch that verifies a draft
_LARGE = 32  # the least tokens in a batch from whose time the speed of reading prompts is computed
_PROMPT, _ANSWER = 256, 128  # tokens of the prompt and of the answer for `Expected.with_prompt`
_PRECISION = 1e-4  # the largest error of the break-even rate


def best_length(rate: float, costs: Mapping[int, float]) -> tuple[int, float]:
    """The best number of tokens to draft in a round, and its speedup over plain decoding.

    The speedup is E / cost. E = 1 + a + ... + a^gamma is the mean number of tokens from a round, if each token is
    accepted with probability a, independently of the others (equation 1 of Leviathan et al. 2022, arXiv 2211.17192).

    Args:
        rate: a, the probability that a token is accepted if all tokens before it are.
        costs: for each gamma, from 0 up, the cost of a round that drafts gamma tokens. The unit is the cost of plainly
            decoding one token.
    """
    speedups = {gamma: sum(rate**i for i in range(gamma + 1)) / cost for gamma, cost in costs.items()}
    gamma = max(speedups, key=speedups.__getitem__)  # the first of equals, which is the smallest
    return gamma, speedups[gamma]


def break_even(costs: Mapping[int, float]) -> float | None:
    """The rate of acceptance below which plain decoding is fastest, by bisection; None if it is fastest at every rate.

    Args:
        costs: as for `best_length`.
    """
    low, high = 0.0, 1.0
    if best_length(high, costs)[0] == 0:
        return None
    while high - low > _PRECISION:
        middle = (low + high) / 2
        if best_length(middle, costs)[0] == 0:
            low = middle
        else:
            high = middle
    return high


@dataclasses.dataclass(frozen=True)
class Expected:
    """The expected cost and speedup of a draft.

    Attributes:
        cost: the time of one drafted token, divided by the time of one token of the target.
        is_measured: True if `cost` was measured on this machine, False if it is estimated from the memory that a decode
            reads.
        pays_from: the least share of accepted tokens at which drafting is faster than plain decoding; None if T(n) of
            the target is not known here, or no share is enough.
        speedup: the speedup over plain decoding at the usual acceptance; None if T(n) or this acceptance is not known.
        tokens_per_second: generated tokens a second with `speedup`, without the time of prompts; None if that is None.
        with_prompt: generated tokens a second for an answer of 128 tokens, with the time in which both models read a
            prompt of 256 tokens; None if `speedup` is None, or the cost of large batches is not known.
    """

    cost: float
    is_measured: bool
    pays_from: float | None = None
    speedup: float | None = None
    tokens_per_second: float | None = None
    with_prompt: float | None = None


def expected(
    cost: float, acceptance: float | None, target: Mapping[int, float], draft: Mapping[int, float]
) -> Expected:
    """Estimate the speedup of a draft. A round that drafts gamma tokens costs gamma * cost + T(gamma + 1) / T(1).

    Args:
        cost: the estimated time of one drafted token, divided by the time of one token of the target.
        acceptance: the usual share of accepted tokens; None if it is not known.
        target: T(n) of the target in seconds, by n, as far as it is known here.
        draft: T(n) of the draft in seconds, by n, as far as it is known here.
    """
    plain = min(target.values(), default=0.0)  # T(1), or less: a batch of one token costs no more than a larger one
    measured = draft[1] / plain if 1 in target and 1 in draft else 0.0
    is_measured = 1 / _ODD <= measured / cost <= _ODD
    if is_measured:
        cost = measured
    if 1 not in target or len(target) < 2:
        return Expected(cost, is_measured)
    sizes = sorted(target)
    least = _line(target)
    rising = itertools.accumulate((max(target[n], least(n)) for n in sizes), max)
    costs = {
        n - 1: (n - 1) * cost + (seconds / plain if n > 1 else 1.0) for n, seconds in zip(sizes, rising, strict=True)
    }
    if acceptance is None:
        return Expected(cost, is_measured, break_even(costs))
    speedup = best_length(acceptance, costs)[1]
    each = plain / speedup
    of_target = _prompt_token(target)
    of_draft = _prompt_token(draft) or (of_target or 0.0) * cost
    whole = None if of_target is None else _ANSWER / (_PROMPT * (of_target + of_draft) + _ANSWER * each)
    return Expected(cost, is_measured, break_even(costs), speedup, 1 / each, whole)


def _prompt_token(costs: Mapping[int, float]) -> float | None:
    """The seconds for each token of a prompt, from the largest batch; None if no batch is large enough."""
    largest = max(costs, default=0)
    return costs[largest] / largest if largest >= _LARGE else None


def _line(target: Mapping[int, float]) -> Callable[[int], float]:
    """A line through the costs of small batches (by Theil and Sen: the median of all slopes).

    A single size is measured only a few times. If its measured cost is below the line, the line is believed.
    """
    small = [n for n in target if n <= _SMALL]
    slopes = [(target[b] - target[a]) / (b - a) for a, b in itertools.combinations(sorted(small), 2)]
    slope = statistics.median(slopes) if slopes else 0.0
    height = statistics.median(target[n] - slope * n for n in small)
    return lambda n: height + slope * n if n <= _SMALL else 0.0
