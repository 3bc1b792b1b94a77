"""Measures what batches cost both models, keeps it for every later start, and says what follows from it.

>>> result = run(llm)  # doctest: +SKIP
>>> result.plans["lookup"].break_even  # doctest: +SKIP
"""

from __future__ import annotations

from .plan import Choice, Plan
from .result import TuneResult
from .runner import run

__all__ = ["Choice", "Plan", "TuneResult", "run"]
