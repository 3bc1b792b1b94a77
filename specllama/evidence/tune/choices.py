"""What a tuning found: the costs of batches, and how many tokens to draft with them."""

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
        speedup: predicted, over plain decoding.
    """

    acceptance_rate: float
    num_draft_tokens: int
    speedup: float


@dataclasses.dataclass(frozen=True)
class Plan(Data):
    """The best fixed number of drafted tokens for several acceptance rates, with one kind of draft.

    Attributes:
        choices: one for each rate.
        break_even: the rate below which plain decoding is fastest; None if it always is.
    """

    choices: tuple[Choice, ...]
    break_even: float | None

    @classmethod
    def of(cls, target: CostCurve, draft: CostCurve | None, rates: Sequence[float] = ACCEPTANCE_RATES) -> Plan:
        """Take the best of S = E / (gamma c + v(gamma+1)) over all gamma whose batch was measured.

        For E see ``best_length``, for the rest ``round_cost``.

        Args:
            target: T(n) of the target, T(1) among it.
            draft: T(1) of the draft at least; None for a lookup, whose drafts cost no decoding.
            rates: the acceptance rates of the choices.
        """
        costs = {n - 1: round_cost(n - 1, target, draft) for n in target.sizes}
        return cls(tuple(Choice(rate, *best_length(rate, costs)) for rate in rates), break_even(costs))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuneResult(Result):
    """Costs of batches, and the plans that they imply.

    Attributes:
        curves: T(n) of the ``"target"`` and, if a model drafts, of the ``"draft"``. From the command line also
            that of the ``"target, kernels off"``, where specllama's kernels multiply its weights.
        plans: for ``"draft model"``, if there is one, and for ``"lookup"``.
        notes: that a curve could not be kept, or that the machine was not idle.
    """

    curves: Mapping[str, CostCurve]
    plans: Mapping[str, Plan]
    notes: list[str]
