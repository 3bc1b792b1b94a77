"""A drafter touches its own files and a line of each table: without these, the others draft, and nothing names it."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pages import ROOT

import specllama
from specllama.engine.drafts.kinds import KINDS

if TYPE_CHECKING:
    from conftest import TinyFiles


@dataclasses.dataclass(frozen=True)
class Drafter:
    """A drafter, and all that there is of it.

    Attributes:
        word: finds its name.
        files: its own, in the package; in cpp/ its own files have its name.
        lines: of these files, the lines with its name are lines of tables, or import what stands in them.
    """

    word: str
    files: tuple[str, ...]
    lines: tuple[str, ...]


TABLE, NAMES, FORMS = "engine/drafts/kinds.py", "models/head_kinds.py", "models/heads.py"
DRAFTERS = {
    "lookahead": Drafter("lookahead", ("engine/drafts/lookahead.py",), (TABLE,)),
    "block heads": Drafter(
        "block_?head|dflash|dspark",
        ("engine/drafts/block_head.py", "models/block_head_file.py"),
        (TABLE, NAMES, FORMS),
    ),
    "assistants": Drafter(
        "assistant",
        ("engine/drafts/assistant.py", "models/assistant_file.py"),
        (TABLE, NAMES, FORMS),
    ),
}
TRIED = """
import json, sys
import specllama
from specllama.engine.drafts.kinds import KINDS

found = []
for draft in (None, "lookup", sys.argv[2], sys.argv[3]):
    with specllama.Llama(sys.argv[1], draft_model=draft, n_ctx=128, n_threads=1, verbose=False) as llm:
        text = llm.create_completion("the cat sat", max_tokens=20, temperature=0.0, num_draft_tokens=3)
        found.append((text["choices"][0]["text"], llm.stats.num_draft_tokens > 0))
print(json.dumps([specllama.__file__, len(KINDS), *found]))
"""


def names_in(path: Path) -> Iterator[str]:
    """All names and texts of a module, except what its documentation says."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
            yield node.value
        for field in ("id", "attr", "name", "module", "arg"):
            if isinstance(found := getattr(node, field, None), str):
                yield found


@pytest.fixture(params=DRAFTERS)
def taken(request: pytest.FixtureRequest) -> Drafter:
    """The drafter that is taken away."""
    return DRAFTERS[request.param]


@pytest.fixture
def package(taken: Drafter, tmp_path: Path) -> Path:
    """A copy of the package without the drafter."""
    copy = tmp_path / "specllama"
    shutil.copytree(Path(specllama.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for name in taken.files:
        (copy / name).unlink()
    for name in taken.lines:
        lines = (copy / name).read_text(encoding="utf-8").splitlines(keepends=True)
        left = [line for line in lines if not re.search(taken.word, line, re.IGNORECASE)]
        assert 0 < len(lines) - len(left) <= 2, "a line of the table, and one for each name that it has or imports"
        (copy / name).write_text("".join(left), encoding="utf-8")
    return copy


def test_the_others_draft(package: Path, tiny_files: TinyFiles) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRIED, *map(str, (tiny_files.deep, tiny_files.good, tiny_files.deep_head))],
        cwd=package.parent,
        env={**os.environ, "PYTHONPATH": str(package.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    path, num_kinds, (plain, _), *others = json.loads(done.stdout)
    assert (Path(path).parent, num_kinds) == (package, len(KINDS) - 1)
    assert others == [[plain, True]] * 3


def test_no_room_below_names_it(taken: Drafter, package: Path) -> None:
    word = re.compile(taken.word, re.IGNORECASE)
    naming = {
        str(path.relative_to(package))
        for room in ("engine", "models", "many")
        for path in (package / room).rglob("*.py")
        if any(map(word.search, names_in(path)))
    }
    assert naming == set()


def test_no_source_names_it(taken: Drafter) -> None:
    """In C++ it is files with its name, and a line of the table."""
    word = re.compile(taken.word, re.IGNORECASE)
    naming = [
        (str(path.relative_to(ROOT)), line.strip())
        for path in (ROOT / "cpp").rglob("*.?pp")
        if not word.search(path.name)
        for line in path.read_text(encoding="utf-8").splitlines()
        if word.search(line.partition("//")[0])
    ]
    assert [path for path, _ in naming] == ["cpp/drafters/source.hpp"]
    assert naming[0][1].startswith("X(")
