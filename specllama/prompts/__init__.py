"""Prompts for measurements and comparisons: our own small set, HumanEval, Spec-Bench, plain text."""

from __future__ import annotations

from .prompt import Prompt
from .reading import builtin_prompts, limited, read_prompts

__all__ = ["Prompt", "builtin_prompts", "limited", "read_prompts"]
