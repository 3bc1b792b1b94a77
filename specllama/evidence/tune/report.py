"""The result of a tuning as text."""

from __future__ import annotations

from collections.abc import Mapping

from specllama.evidence.tables import curves_table, report_text, table

from .choices import Choice, Plan, TuneResult

_EXPLANATION = (
    "The fastest fixed number of drafted tokens, and its predicted speedup over plain decoding, if a drafted token is\n"
    'accepted so often. The default, num_draft_tokens="auto", follows the acceptance of the text, and stops where\n'
    "drafting does not pay. Planned with, and kept, are the lower quartiles: whatever else the machine does makes a\n"
    "batch slower, never faster."
)


def to_text(result: TuneResult) -> str:
    """Machine, costs of batches, plans, and notes."""
    return report_text(result.machine, [curves_table(result.curves), _plans(result.plans)], result.notes)


def _plans(plans: Mapping[str, Plan]) -> str:
    titles = ["accepted", *(title for name in plans for title in (name, "speedup"))]
    rows = [
        [f"{choices[0].acceptance_rate:.0%}", *(cell for choice in choices for cell in _cells(choice))]
        for choices in zip(*(plan.choices for plan in plans.values()), strict=True)
    ]
    pays = "; ".join(f"{name}, {_break_even(plan)}" for name, plan in plans.items())
    return f"{_EXPLANATION}\n\n{table(titles, rows, left=())}\n\nDrafting pays: {pays}."


def _cells(choice: Choice) -> tuple[str, str]:
    return str(choice.num_draft_tokens or "plain"), f"{choice.speedup:.2f}x"


def _break_even(plan: Plan) -> str:
    return "never" if plan.break_even is None else f"where more than {plan.break_even:.0%} are accepted"
