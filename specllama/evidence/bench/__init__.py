"""Measures what a draft gains: modes of decoding, by turns, on the same prompts.

``run(llm, builtin_prompts(), modes=["plain", "block:4"])`` gives a ``BenchResult``.
"""

from __future__ import annotations

from .mode import Mode
from .plan import Plan
from .report import write_report
from .result import BenchResult, Row, Run
from .runner import Bench, run

__all__ = ["Bench", "BenchResult", "Mode", "Plan", "Row", "Run", "run", "write_report"]
