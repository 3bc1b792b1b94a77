"""Writes the figures of README.md and docs/ from docs/data/: ``python scripts/tables.py``.

A figure or a table stands between two comments, ``<!-- data: NAME -->`` and ``<!-- /data -->``, within a line or in
lines of its own. NAME is a function of figures.py. ``NAME of MACHINE`` is what docs/data/MACHINE/ says, not
docs/data/. ``--check`` changes nothing, and ends with 1 if a page is not what it should be. scripts/measure.sh makes
the data.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import figures
import recorded

MARKED = re.compile(
    r"(?P<begin><!-- data: (?P<name>[\w-]+)(?: of (?P<machine>[\w-]+))? -->)(?P<old>.*?)(?P<end><!-- /data -->)",
    re.DOTALL,
)


def pages() -> Iterator[Path]:
    """The pages with figures: README.md and docs/."""
    yield recorded.ROOT / "README.md"
    yield from sorted((recorded.ROOT / "docs").glob("*.md"))


def names_in(text: str) -> list[str]:
    """The names of the figures in a page."""
    return [found["name"] for found in MARKED.finditer(text)]


def made(name: str, machine: str | None = None, *, in_line: bool) -> str:
    """A figure, or what stands in its place until it is measured."""
    if name not in figures.TABLES:
        raise LookupError(f"no figure is called {name}: there are {', '.join(sorted(figures.TABLES))}")
    try:
        return figures.TABLES[name](recorded.DATA / (machine or ""))
    except figures.MissingError:
        return "(not measured yet)" if in_line else "Not measured yet."


def written(text: str) -> str:
    """A page with its figures as the data has them."""

    def replaced(found: re.Match[str]) -> str:
        in_line = "\n" not in found["old"]
        space = "" if in_line else "\n\n"
        new = made(found["name"], found["machine"], in_line=in_line)
        return f"{found['begin']}{space}{new}{space}{found['end']}"

    return MARKED.sub(replaced, text)


def main() -> int:
    """Write the pages, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; say what would be")
    given = parser.parse_args()
    stale = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        new = written(text)
        if new != text:
            stale.append(page.name)
            if not given.check:
                page.write_text(new, encoding="utf-8")
    if stale:
        print(f"{'would change' if given.check else 'changed'}: {', '.join(stale)}")
    return int(given.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
