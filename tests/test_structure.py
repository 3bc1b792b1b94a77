"""The shape of the sources: no circles of files, and a top level that can be looked over."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MOST_MODULES = 22


def modules_in(package: Path) -> dict[str, Path]:
    """The files of a package by the names of their modules. `_core` is compiled: its stub stands for it."""
    found = {}
    for path in sorted([*package.rglob("*.py"), *package.rglob("*.pyi")]):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported_by(module: str, path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    """The modules that a file imports: at its top, within functions, or for type checkers only."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            package = module.split(".") if path.stem == "__init__" else module.split(".")[:-1]
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield from [inner] if inner in known else [base] if base in known else []


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The nodes that can be reached from themselves, with all that lie on the same way around."""
    reached = {}
    for start in graph:
        seen: set[str] = set()
        waiting = [*graph[start]]
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                waiting += graph[node]
        reached[start] = seen
    around = {node: sorted(other for other in seen if node in reached[other]) for node, seen in reached.items()}
    return [nodes for node, nodes in sorted(around.items()) if node in nodes and node == nodes[0]]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with one import at the top, one within a function, and one for type checkers."""
    folder = tmp_path / "example"
    (folder / "room").mkdir(parents=True)
    sources = {
        "__init__.py": "",
        "a.py": "from .room import b",
        "room/__init__.py": "",
        "room/b.py": "def f():\n    from ..c import g",
        "c.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import example.a",
        "d.py": "from example import a, c\nimport os",
    }
    for name, source in sources.items():
        (folder / name).write_text(source, encoding="utf-8")
    return folder


def graph_of(package: Path) -> dict[str, set[str]]:
    """What each file of a package imports of it."""
    known = modules_in(package)
    return {module: {*imported_by(module, path, known)} - {module} for module, path in known.items()}


def test_circles_are_found(package: Path) -> None:
    assert circles(graph_of(package)) == [["example.a", "example.c", "example.room.b"]]
    (package / "c.py").write_text("", encoding="utf-8")
    assert circles(graph_of(package)) == []


def test_there_is_no_circle_of_files() -> None:
    graph = graph_of(ROOT / "specllama")
    assert "specllama.engine.session" in graph["specllama.engine.generation"]
    assert "specllama.llama" in graph["specllama"], "imports for type checkers count"
    assert circles(graph) == []


def test_the_top_level_can_be_looked_over() -> None:
    modules = sorted(path.name for path in (ROOT / "specllama").glob("*.py"))
    assert len(modules) <= MOST_MODULES, modules


def test_every_room_says_what_it_is_for() -> None:
    rooms = [path for path in (ROOT / "specllama").glob("*/") if any(path.glob("*.py"))]
    assert [room.name for room in rooms if not (room / "__init__.py").is_file()] == []
    silent = [
        room.name
        for room in rooms
        if ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8"))) is None
    ]
    assert silent == []
