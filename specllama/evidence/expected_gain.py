"""The gain that is expected of a draft before it is tried, by what batches cost on this machine."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping

from specllama.cost_curve import CostCurve

from .data import Data
from .tune.choices import Plan

_ODD = 3.0
"""A measured cost that differs from the estimate by more than this factor was disturbed by other programs."""


@dataclasses.dataclass(frozen=True)
class Expected(Data):
    """The expected gain of a draft.

    Attributes:
        cost: the cost of a drafted token, over that of a token of the target.
        is_measured: whether the cost was measured on this machine. If not, it is estimated by the memory that is read.
        pays_from: the share of accepted tokens from which on drafting is faster than plain decoding; None: T(n) of the
            target is not known here, or no share is enough.
        speedup: the speedup over plain decoding at the usual acceptance; None: T(n) or the usual acceptance is not
            known.
    """

    cost: float
    is_measured: bool
    pays_from: float | None
    speedup: float | None


def expected(
    cost: float, acceptance: float | None, target: Mapping[int, float], draft: Mapping[int, float]
) -> Expected:
    """Compute the expected gain by the model of ``tune.choices.Plan``.

    Args:
        cost: the estimated cost of a drafted token, over that of a token of the target.
        acceptance: the usual acceptance rate; None: it is not known.
        target: T(n) of the target in seconds, as far as it is known here.
        draft: T(n) of the draft in seconds, as far as it is known here.
    """
    measured = draft[1] / target[1] if 1 in target and 1 in draft else 0.0
    is_measured = 1 / _ODD <= measured / cost <= _ODD
    if is_measured:
        cost = measured
    if 1 not in target or len(target) < 2:
        return Expected(cost, is_measured, None, None)
    sizes = sorted(target)
    rising = itertools.accumulate((target[n] for n in sizes), max)
    of_target = CostCurve("target", 0, {n: (seconds,) for n, seconds in zip(sizes, rising, strict=True)})
    of_draft = CostCurve("draft", 0, {1: (cost * target[1],)})
    plan = Plan.of(of_target, of_draft, [] if acceptance is None else [acceptance])
    return Expected(cost, is_measured, plan.break_even, plan.choices[0].speedup if plan.choices else None)
