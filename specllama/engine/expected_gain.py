"""What a draft is expected to give, by what batches cost here: before it was ever tried."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Mapping

_ODD = 3.0
"""A cost that is so many times another than what is read of memory was measured while others used the machine."""
_SMALL = 16  # tokens of a batch that a draft fills
_LARGE = 32  # tokens of a batch of a prompt
_PROMPT, _ANSWER = 256, 128  # tokens
_PRECISION = 1e-4  # of the break-even rate


def best_length(rate: float, costs: Mapping[int, float]) -> tuple[int, float]:
    """How many tokens a round best drafts, and the speedup over plain decoding that this gives.

    S = E / cost with E = 1 + a + ... + a^gamma: what a round emits if each token is accepted with probability a,
    whatever came before (equation 1 of Leviathan et al. 2022, arXiv 2211.17192).

    Args:
        rate: a, the probability that a token is accepted, if all before it are.
        costs: of a round that drafts gamma tokens, in plain decodes of one token, by gamma. 0 is among them.
    """
    speedups = {gamma: sum(rate**i for i in range(gamma + 1)) / cost for gamma, cost in costs.items()}
    gamma = max(speedups, key=speedups.__getitem__)  # the first of equals, which is the smallest
    return gamma, speedups[gamma]


def break_even(costs: Mapping[int, float]) -> float | None:
    """The rate below which plain decoding is fastest; None if it always is. By bisection: E grows with the rate.

    Args:
        costs: see `best_length`.
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
    """What is expected.

    Attributes:
        cost: of a drafted token, over one of the target.
        is_measured: the cost was measured on this machine; else it is estimated by what is read of memory.
        pays_from: the share of accepted tokens from which on drafting is faster than plain decoding; None: T(n) of the
            target is not known here, or no share is enough.
        speedup: over plain decoding, at the usual acceptance; None: T(n) or the usual acceptance is not known.
        tokens_per_second: the same in tokens of the text a second, prompts left out.
        with_prompt: the same of an answer of 128 tokens behind a prompt of 256, which both read; None: what large
            batches cost is not known.
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
    """What a draft gives whose rounds cost gamma c + T(gamma+1) / T(1).

    Args:
        cost: of a drafted token over one of the target, estimated.
        acceptance: the usual one; None: it is not known.
        target: T(n) of the target in seconds, as far as it is known here.
        draft: the same of the draft.
    """
    plain = min(target.values(), default=0.0)  # one token costs no more than several
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


def plain_speed(target: Mapping[int, float]) -> float | None:
    """Tokens a second of plain decoding, prompts left out; None: it is not known."""
    return 1 / min(target.values()) if 1 in target else None


def _prompt_token(costs: Mapping[int, float]) -> float | None:
    """Seconds for each token of a prompt, by the largest batch; None: none is large."""
    largest = max(costs, default=0)
    return costs[largest] / largest if largest >= _LARGE else None


def _line(target: Mapping[int, float]) -> Callable[[int], float]:
    """A line through what small batches cost (Theil and Sen's: the median of all slopes).

    Of a single size little was measured: one that seems to cost less than all others say does not.
    """
    small = [n for n in target if n <= _SMALL]
    slopes = [(target[b] - target[a]) / (b - a) for a, b in itertools.combinations(sorted(small), 2)]
    slope = statistics.median(slopes) if slopes else 0.0
    height = statistics.median(target[n] - slope * n for n in small)
    return lambda n: height + slope * n if n <= _SMALL else 0.0
