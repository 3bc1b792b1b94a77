"""Every test of this folder can fail: it asserts something, itself or by a function whose name says so."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

BY_PYTEST = {"raises", "warns", "fail"}
Functions = dict[tuple[str, str], ast.FunctionDef]
"""By module and name."""


class Sources:
    """The tests of a folder, and what they call there."""

    def __init__(self, folder: Path) -> None:
        self.trees = {path.stem: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.py"))}
        self.functions: Functions = {
            (module, node.name): node
            for module, tree in self.trees.items()
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef)
        }
        self.imported = {module: dict(self._imports(tree)) for module, tree in self.trees.items()}

    def _imports(self, tree: ast.Module) -> Iterator[tuple[str, tuple[str, str]]]:
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module in self.trees:
                yield from ((alias.asname or alias.name, (node.module, alias.name)) for alias in node.names)

    def without_an_assertion(self) -> list[str]:
        """The tests that nothing but an exception makes fail."""
        tests = [key for key in self.functions if key[0].startswith("test_") and key[1].startswith("test_")]
        return [f"{module}.py::{name}" for module, name in tests if not self.asserts(module, name)]

    def asserts(self, module: str, name: str) -> bool:
        """Whether a function asserts, itself or by others that are called `assert_...`."""
        return any(self._is_one(module, node) for node in ast.walk(self.functions[module, name]))

    def _is_one(self, module: str, node: ast.AST) -> bool:
        if not isinstance(node, ast.Call):
            return isinstance(node, ast.Assert)
        if isinstance(node.func, ast.Attribute):  # of pytest, numpy.testing, an object of the tests'
            return (ast.unparse(node.func.value) == "pytest" and node.func.attr in BY_PYTEST) or is_said(node.func.attr)
        if not isinstance(node.func, ast.Name) or not is_said(node.func.id):
            return False
        found = self.imported[module].get(node.func.id, (module, node.func.id))
        return found not in self.functions or self.asserts(*found)


def is_said(name: str) -> bool:
    """Whether the name of a function says that it asserts."""
    return name.startswith("assert_")


def test_every_test_asserts() -> None:
    assert Sources(Path(__file__).parents[1]).without_an_assertion() == []


@pytest.mark.parametrize(
    ("body", "asserts"),
    [
        ("assert f()", True),
        ("for x in f():\n        assert x", True),
        ("with pytest.raises(ValueError):\n        f()", True),
        ("np.testing.assert_allclose(f(), 1)", True),
        ("assert_right(f())", True),
        ("assert_by_another()", True),
        ("f()", False),
        ("check(f())", False),  # it asserts, and its name does not say so
        ("assert_nothing()", False),
        ("with warnings.catch_warnings():\n        f()", False),
        ("other.raises(f)", False),
    ],
)
def test_assertions_are_found(tmp_path: Path, body: str, asserts: bool) -> None:
    helpers = """
def assert_right(x):
    assert x
def assert_by_another():
    assert_right(1)
def assert_nothing():
    pass
def check(x):
    assert x
"""
    (tmp_path / "helpers.py").write_text(helpers, encoding="utf-8")
    names = "assert_right, assert_by_another, assert_nothing, check"
    test = f"from helpers import {names}\ndef test_it():\n    {body}\n"
    (tmp_path / "test_one.py").write_text(test, encoding="utf-8")
    assert Sources(tmp_path).without_an_assertion() == ([] if asserts else ["test_one.py::test_it"])
