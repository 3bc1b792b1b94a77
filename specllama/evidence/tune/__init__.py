"""Measures what batches cost both models, keeps the costs for later starts, and says how much to draft with them.

>>> result = run(llm)  # doctest: +SKIP
>>> result.plans["lookup"].break_even  # doctest: +SKIP
"""

from __future__ import annotations

from .choices import Choice, Plan, TuneResult
from .tuning import run

__all__ = ["Choice", "Plan", "TuneResult", "run"]
