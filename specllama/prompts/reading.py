"""Reads prompts from files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from .prompt import Prompt


def builtin_prompts() -> list[Prompt]:
    """The prompts that come with the package."""
    raise NotImplementedError


def read_prompts(path: Path) -> tuple[list[Prompt], list[str]]:
    """The prompts of a file, and what was wrong with the lines that were skipped ("FILE:LINE: why")."""
    raise NotImplementedError


def limited(prompts: Iterable[Prompt], limit: int) -> list[Prompt]:
    """At most the first `limit` prompts of each category."""
    raise NotImplementedError
