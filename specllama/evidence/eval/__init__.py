"""Grades answers with and without a draft: is the quality the same?"""

from __future__ import annotations

from .evaluation import Evaluation
from .grades import Accuracy, Comparison, EvalResult, Grade, GradedAnswer, Record, compare_accuracy
from .human_eval import humaneval
from .multiplication import multiply
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
    "compare_accuracy",
    "humaneval",
    "multiply",
]
