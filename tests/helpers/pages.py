"""The pages that users read, and the blocks of code in them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = (README, *sorted((ROOT / "docs").glob("*.md")))


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block."""

    page: Path
    line: int
    """Of its first line of code, from 1."""
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """All fenced blocks of a page, in order."""
    language, start = None, 0
    lines = page.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("```"):
            if language is None:
                language, start = line.strip().removeprefix("```"), number
            else:
                yield Block(page, start + 1, language, "\n".join(lines[start : number - 1]))
                language = None


def blocks_in(language: str) -> list[Block]:
    """The blocks of all pages in one language."""
    return [block for page in PAGES for block in blocks(page) if block.language == language]
