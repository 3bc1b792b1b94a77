"""Verifies on the user's own pair of models that a draft changes neither texts nor the distribution of samples.

>>> result = run(llm)  # doctest: +SKIP
>>> assert result.passed, result.problems  # doctest: +SKIP
"""

from __future__ import annotations

from .verdicts import Difference, SamplingTest, TextComparison, TokenTest, VerifyResult
from .verification import Verification, run

__all__ = [
    "Difference",
    "SamplingTest",
    "TextComparison",
    "TokenTest",
    "Verification",
    "VerifyResult",
    "run",
]
