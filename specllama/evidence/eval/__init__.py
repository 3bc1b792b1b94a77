"""Answers that can be graded, with and without a draft: is the quality the same?"""

from __future__ import annotations

from .accuracy import Accuracy, Comparison, compare_accuracy
from .evaluation import Evaluation
from .human_eval import humaneval
from .multiplication import multiply
from .result import EvalResult, Grade, GradedAnswer, Record, Speed
from .sandbox import Limits

__all__ = [
    "Accuracy",
    "Comparison",
    "EvalResult",
    "Evaluation",
    "Grade",
    "GradedAnswer",
    "Limits",
    "Record",
    "Speed",
    "compare_accuracy",
    "humaneval",
    "multiply",
]

compare = compare_accuracy
"""Its name before: `specllama.compare` compares something else."""
