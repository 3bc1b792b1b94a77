"""The result of a tuning: the costs of batches, and how many tokens to draft with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from specllama.cost_curve import CostCurve
from specllama.engine import best_length, break_even
from specllama.evidence.bench.rounds import round_cost
from specllama.evidence.data import Data, Result

ACCEPTANCE_RATES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


@dataclasses.dataclass(frozen=True)
class Choice(Data):
    """The number of drafted tokens that is fastest at one acceptance rate.

    Attributes:
        acceptance_rate: the probability that a token is accepted, if all before it are.
        num_draft_tokens: gamma; 0 is plain decoding.
        speedup: the predicted speedup over plain decoding.
    """

    acceptance_rate: float
    num_draft_tokens: int
    speedup: float


@dataclasses.dataclass(frozen=True)
class Plan(Data):
    """The best fixed number of drafted tokens for several acceptance rates, with one kind of draft.

    Attributes:
        choices: one choice for each rate.
        break_even: the rate below which plain decoding is fastest; None if plain decoding always is.
    """

    choices: tuple[Choice, ...]
    break_even: float | None

    @classmethod
    def of(cls, target: CostCurve, draft: CostCurve | None, rates: Sequence[float] = ACCEPTANCE_RATES) -> Plan:
        """For each rate, choose the gamma with the largest S = E / (gamma c + v(gamma+1)) among the measured batches.

        For E see ``best_length``, for c and v ``round_cost``.

        Args:
            target: T(n) of the target, with T(1).
            draft: T(n) of the draft, at least T(1); None for a lookup, whose drafts cost no decoding.
            rates: the acceptance rates of the choices.
        """
        costs = {n - 1: round_cost(n - 1, target, draft) for n in target.sizes}
        return cls(tuple(Choice(rate, *best_length(rate, costs)) for rate in rates), break_even(costs))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuneResult(Result):
    """The costs of batches, and the plans that follow from them.

    Attributes:
        curves: T(n) of the ``"target"`` and, if a model drafts, of the ``"draft"``. The command line adds
            the curve of the ``"target, kernels off"``, if specllama's kernels multiply the target's weights.
        plans: the plans for the ``"draft model"``, if there is one, and for ``"lookup"``.
        notes: notes that a curve could not be kept, or that the machine was not idle.
    """

    curves: Mapping[str, CostCurve]
    plans: Mapping[str, Plan]
    notes: list[str]
