"""What a tuning found."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from specllama.cost_curve import CostCurve

from .plan import Plan


@dataclasses.dataclass(frozen=True)
class TuneResult:
    """Costs of batches, and the plans that they imply.

    Attributes:
        curves: T(n) of the ``"target"`` and, if a model drafts, of the ``"draft"``. From the command line also
            that of the ``"target, kernels off"``, where specllama's kernels multiply its weights.
        plans: for ``"draft model"``, if there is one, and for ``"lookup"``.
        machine: what it was measured on, see ``describe_machine``.
        notes: that a curve could not be kept, or that the machine was not idle.
    """

    curves: Mapping[str, CostCurve]
    plans: Mapping[str, Plan]
    machine: Mapping[str, Any]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {
            "curves": {name: curve.to_dict() for name, curve in self.curves.items()},
            "plans": {name: plan.to_dict() for name, plan in self.plans.items()},
            "machine": dict(self.machine),
            "notes": list(self.notes),
        }
