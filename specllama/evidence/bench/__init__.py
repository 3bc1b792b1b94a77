"""Measures what a draft gains: several modes of decoding answer the same prompts in turn.

``run(llm, builtin_prompts(), modes=["plain", "block:4"])`` gives a ``BenchResult``.
"""

from __future__ import annotations

from .benchmark import Bench, run
from .page import write_report
from .plan import Mode, Plan
from .runs import BenchResult, Row, Run

__all__ = ["Bench", "BenchResult", "Mode", "Plan", "Row", "Run", "run", "write_report"]
