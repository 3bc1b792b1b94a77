"""Questions of an editor's kind, made of a repository's history: change this code as the commit's message says."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONTEXT = 10  # lines before and after what changes
FEWEST, MOST = 12, 45  # lines of code in a question
MOST_CHANGED = 14
NEWEST = "e826b07a"  # the newest commit that is used: later ones would give other questions


def edits(count: int) -> list[str]:
    """The newest questions that can be made, one of each commit at most.

    Args:
        count: how many are wanted.
    """
    found: list[str] = []
    for line in _git("log", "--no-merges", "--format=%H %s", NEWEST).splitlines():
        if len(found) == count:
            break
        name, _, message = line.partition(" ")
        if (code := next(_changed(name), None)) is not None:
            found.append(
                "Change this Python code as the message says. Answer with the whole changed code only.\n\n"
                f"{message}\n\n```python\n{code}\n```"
            )
    return found


def _changed(commit: str) -> Iterator[str]:
    """The old code of each place that a commit changes, if it is of a good size."""
    diff = _git("show", "--format=", f"-U{CONTEXT}", "--diff-filter=M", commit, "--", "*.py")
    for hunk in re.split(r"^@@ .*$", diff, flags=re.MULTILINE)[1:]:
        lines = hunk.split("\ndiff --git ")[0].splitlines()[1:]
        old = [line[1:] for line in lines if line[:1] in (" ", "-")]
        num_changed = sum(line[:1] in ("+", "-") for line in lines)
        if FEWEST <= len(old) <= MOST and num_changed <= MOST_CHANGED:
            yield "\n".join(old)


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout
