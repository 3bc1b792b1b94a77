"""Measures what batches cost both models, keeps it for every later start, and says what follows from it.

>>> result = run(llm)  # doctest: +SKIP
>>> result.plans["lookup"].break_even  # doctest: +SKIP
"""

from __future__ import annotations

from .result import Choice, Plan, TuneResult
from .runner import run

__all__ = ["Choice", "Plan", "TuneResult", "run"]
