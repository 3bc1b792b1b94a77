"""The shape of the sources: no circles of files or rooms, and arrows one way."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CPP = ROOT / "cpp"
ROOMS = {
    "math": [],
    "math/rules": ["math"],
    "pacing": [],
    "kernels": [],
    "heads": ["kernels"],
    "llama": ["math", "kernels"],
    "ggml": [],
    "ggml_plugin": ["kernels", "ggml"],
    "translation": ["math", "llama"],
    "drafters": ["math", "math/rules", "pacing", "heads", "llama", "translation"],
    "loop": ["math", "math/rules", "pacing", "heads", "llama", "drafters"],
    "bindings": [
        *("math", "math/rules", "pacing", "kernels", "heads", "llama", "translation", "ggml", "ggml_plugin"),
        *("drafters", "loop"),
    ],
    "bindings/drafters": ["bindings", "drafters"],
}
"""The folders of cpp/, and what each may include of others. What only tests use may include all."""
FOR_TESTS = "bindings/test"
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
MOST_MODULES = 22
COMPILED = ("_core", "_core_test")


def modules_in(package: Path) -> dict[str, Path]:
    """The files of a package by the names of their modules."""
    found = {}
    for path in sorted(package.rglob("*.py")):
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
                if alias.name in COMPILED:
                    continue
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
    assert "specllama.engine.slot" in graph["specllama.engine.generation"]
    assert "specllama.llama" in graph["specllama"], "imports for type checkers count"
    assert circles(graph) == []


def test_only_the_command_line_knows_of_the_evidence() -> None:
    room = re.compile(r"specllama\.evidence\b")
    knowing = {module for module, others in graph_of(ROOT / "specllama").items() if any(map(room.match, others))}
    assert {
        module for module in knowing if not module.startswith(("specllama.evidence", "specllama.commands."))
    } == set()
    assert "specllama.commands.bench" in knowing


PYTHON_ROOMS = {
    "backend": [],
    "prompts": ["drop_in", "chat"],
    "models": ["backend"],
    "grammars": ["backend"],
    "engine": ["backend", "models", "grammars"],
    "drop_in": ["backend", "models", "grammars", "engine"],
    "chat": ["models", "grammars", "engine", "drop_in"],
    "evidence": ["backend", "engine", "prompts"],
    "many": ["backend", "engine", "drop_in"],
    "training": ["backend", "models", "engine", "drop_in", "chat", "many", "prompts"],
    "server": ["backend", "models", "grammars", "engine", "drop_in", "chat", "many"],
    "batch": ["engine", "drop_in", "many", "server", "prompts"],
    "commands": [
        "backend",
        "models",
        "engine",
        "drop_in",
        "many",
        "evidence",
        "server",
        "batch",
        "prompts",
        "training",
    ],
}
"""The folders of specllama/, and what each may import of others. Modules at the top are for all."""


def test_python_rooms_import_what_is_below_them() -> None:
    graph = graph_of(ROOT / "specllama")

    def room(module: str) -> str:
        parts = module.split(".")
        return parts[1] if len(parts) > 2 or (ROOT / "specllama" / parts[-1]).is_dir() else ""

    upward = [
        f"{module} imports {other}"
        for module, others in graph.items()
        for other in others
        if room(module) and room(other) not in ("", room(module), *PYTHON_ROOMS[room(module)])
    ]
    assert upward == []


OUTSIDE = ("batch", "commands", "evidence", "prompts", "server", "training")
"""The rooms that take of the core what it exports."""
ALONE = ("conversation", "llm_plugin", "ray")
"""Modules at the top that do so."""
PUBLIC = (
    "specllama",
    *(f"specllama.{room}" for room in ("chat", "drop_in", "engine", "grammars", "many", "models", "prompts")),
)
"""What they may take of these rooms is what they export. Modules at the top are what users import, and backend/ is
about processes and the machine: of them they may take all that has no underscore."""
HOUSES = re.compile(r"specllama\.(batch|commands|evidence|server|training)\b")
"""What is no part of the core."""
INSIDE = ("account", "slot")
"""What an Engine has for the rooms inside. It has no underscore, for they are several."""


def test_what_stands_outside_takes_what_is_exported() -> None:
    exported = {name: {*importlib.import_module(name).__all__} for name in PUBLIC}
    inside = []
    package = ROOT / "specllama"
    modules = [path for room in OUTSIDE for path in sorted((package / room).rglob("*.py"))]
    for path in [*modules, *(package / f"{name}.py" for name in ALONE)]:
        nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
        fields = {
            each.target.id for each in nodes if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        }
        for node in nodes:
            of_package = path.parent == package and isinstance(node, ast.ImportFrom) and node.level
            if isinstance(node, ast.ImportFrom) and (of_package or (node.module or "").startswith("specllama")):
                module = ".".join(filter(None, ["specllama" if of_package else "", node.module]))
                names = {alias.name for alias in node.names}
                if HOUSES.match(module):
                    continue
                if module in PUBLIC:
                    wrong = names - exported[module]
                else:
                    is_open = module.startswith("specllama.backend.") or module.count(".") == 1
                    wrong = {name for name in names if not is_open or f".{name}".startswith("._")}
                inside += [f"{path.name} imports {name} from {module}" for name in wrong]
            elif isinstance(node, ast.Attribute):
                # os._exit, and types of argparse's
                of_itself = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls", "os", "argparse")
                of_itself = of_itself or node.attr in fields  # pydantic's private attributes
                owner = getattr(node.value, "attr", getattr(node.value, "id", ""))
                of_engine = node.attr in INSIDE and owner.endswith("engine")
                if of_engine or (node.attr.startswith("_") and not of_itself and node.attr[:2] != "__"):
                    inside.append(f"{path.name}:{node.lineno} touches {node.attr}")
    assert inside == []


def test_only_the_drop_in_and_its_chats_know_the_class_llama() -> None:
    names = re.compile(r"llama_cpp\.Llama\(|BaseLlama|object\.__new__|ContextVar|WeakKeyDictionary")
    knowing = {
        str(path.relative_to(ROOT / "specllama"))
        for path in (ROOT / "specllama").rglob("*.py")
        if names.search(path.read_text(encoding="utf-8")) and path.parent.name not in ("drop_in", "chat")
    }
    # One opens it to compare with it, the other is handed one.
    assert knowing == {"llama.py", "cost_curve.py", "evidence/bench/_side_worker.py"}


def test_a_view_is_for_chat_handlers_alone() -> None:
    """All others are given what a call asks for as an argument."""
    views = re.compile(r"\bView\(|\(View\)|(?<!self)\._call\b")
    knowing = {
        str(path.relative_to(ROOT / "specllama"))
        for path in (ROOT / "specllama").rglob("*.py")
        if views.search(path.read_text(encoding="utf-8"))
    }
    assert knowing == {"drop_in/view.py", "drop_in/image_prompts.py", "chat/chats.py"}


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


def includes(folder: Path) -> dict[str, set[str]]:
    """What each unit of a folder of C++ includes of it: a header and its source are one unit."""
    found: dict[str, set[str]] = {}
    for path in sorted(folder.rglob("*.?pp")) + sorted(folder.rglob("*.inc")):
        unit = str(path.relative_to(folder).with_suffix(""))
        for name in INCLUDE.findall(path.read_text(encoding="utf-8")):
            assert (folder / name).is_file(), f"{path} includes {name}: write paths from the folder {folder.name}"
            found.setdefault(unit, set()).add(str(Path(name).with_suffix("")))
        found.setdefault(unit, set()).discard(unit)
    return found


def room_of(unit: str) -> str:
    return unit.rpartition("/")[0]


@pytest.fixture
def circle_of_headers(tmp_path: Path) -> Path:
    """Two units that include each other, one by its source only, and a room that includes one above it."""
    for name, text in {
        "math/a.hpp": '#include "math/b.hpp"',
        "math/b.hpp": "",
        "math/b.cpp": '#include "math/b.hpp"\n#include "math/a.hpp"\n#include <vector>',
        "loop/c.hpp": '#include "math/a.hpp"',
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def test_circles_of_units_are_found(circle_of_headers: Path) -> None:
    assert circles(includes(circle_of_headers)) == [["math/a", "math/b"]]


def test_there_is_no_circle_of_units() -> None:
    graph = includes(CPP)
    assert "llama/sequence" in graph["llama/decoding"]
    assert circles(graph) == []


def test_rooms_include_what_is_below_them() -> None:
    graph = includes(CPP)
    assert {room_of(unit) for unit in graph} == {*ROOMS, FOR_TESTS}
    upward = [
        f"{unit} includes {other}"
        for unit, others in graph.items()
        for other in others
        if room_of(unit) not in (room_of(other), FOR_TESTS) and room_of(other) not in ROOMS[room_of(unit)]
    ]
    assert upward == []
    assert circles({room: set(below) for room, below in ROOMS.items()}) == []


def test_only_the_bindings_know_python() -> None:
    knowing = {
        room_of(str(path.relative_to(CPP)))
        for path in CPP.rglob("*.?pp")
        if "pybind11" in path.read_text(encoding="utf-8")
    }
    assert knowing == {"bindings", "bindings/drafters", FOR_TESTS}


def test_only_the_room_of_llama_calls_libllama() -> None:
    calling = re.compile(r"\bapi_?(?:->|\.)llama_\w+\(")
    callers = {
        room_of(str(path.relative_to(CPP)))
        for path in CPP.rglob("*.?pp")
        if calling.search(path.read_text(encoding="utf-8"))
    }
    assert callers == {"llama"}
