"""The stubs say what the extensions have: names, and the names, order and kinds of arguments."""

from __future__ import annotations

import ast
import re
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specllama import _core
from specllama import _core_test as _test

STUBS = {
    _core: Path(_core.__file__).with_name("_core.pyi"),
    _test: Path(__file__).parents[2] / "cpp" / "bindings" / "test" / "_core_test.pyi",
}
SPECIAL = {"__init__", "__len__", "__enter__", "__exit__"}

Signature = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
"""Names of positional arguments, of keyword-only ones, and of those that may be left out."""
Members = dict[str, Any]
"""By their path: a class's bases, "property", or the set of a function's signatures."""


@pytest.mark.parametrize(("module", "least"), [(_core, 100), (_test, 40)])
def test_the_stub_has_what_the_extension_has(module: types.ModuleType, least: int) -> None:
    found = of_extension(vars(module))
    assert len(found) > least
    assert of_stub(ast.parse(STUBS[module].read_text(encoding="utf-8")).body) == found


def test_a_struct_is_read_only_and_shows_its_fields() -> None:
    index = _test.SuffixIndex()
    index.append(np.array([1, 2, 3, 1, 2], dtype=np.int32))
    match = index.longest()
    assert repr(match) == "Match(next=2, length=2, num_other=0)"
    with pytest.raises(AttributeError):
        match.length = 3  # type: ignore[misc]


def test_every_struct_and_its_fields_are_documented() -> None:
    for module in (_core, _test):
        for name, member in vars(module).items():
            if isinstance(member, type) and not issubclass(member, Exception) and "__repr__" in vars(member):
                fields = {field: got for field, got in vars(member).items() if isinstance(got, property)}
                assert fields
                assert member.__doc__, name
                assert [field for field, got in fields.items() if not got.__doc__] == [], name


def of_extension(names: Mapping[str, Any], owner: str = "") -> Members:
    found: Members = {}
    for name, member in names.items():
        path = owner + name
        if name.startswith("_") and name not in SPECIAL:
            continue
        if isinstance(member, type):
            found[path] = [base.__name__ for base in member.__bases__ if base.__name__ != "pybind11_object"]
            found |= of_extension(vars(member), path + ".")
        elif isinstance(member, property):
            found[path] = "property"
        elif isinstance(member, int):
            found[path] = type(member).__name__
        elif signatures := documented(getattr(member, "__func__", member).__doc__):
            found[path] = signatures
    return found


def documented(documentation: str) -> set[Signature]:
    """The signatures that pybind11 writes into a function's documentation, a line for each overload."""
    lines = re.findall(r"^(?:\d+\. )?(\w+\(.*\) -> .*)$", documentation, re.M)
    texts = (re.sub(r"<[^<>]*>", "...", line) for line in lines)  # a default that has no literal
    return {signature(ast.parse(f"def {text}: ...").body[0]) for text in texts}


def of_stub(body: list[ast.stmt], owner: str = "") -> Members:
    found: Members = {}
    for node in body:
        if isinstance(node, ast.ClassDef):
            found[owner + node.name] = [ast.unparse(base) for base in node.bases]
            found |= of_stub(node.body, f"{owner}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            if "property" in map(ast.unparse, node.decorator_list):
                found[owner + node.name] = "property"
            else:
                found.setdefault(owner + node.name, set()).add(signature(node))
        elif isinstance(node, ast.AnnAssign):
            found[owner + ast.unparse(node.target)] = ast.unparse(node.annotation)
    return found


def signature(node: ast.stmt) -> Signature:
    assert isinstance(node, ast.FunctionDef)
    positional = [argument.arg for argument in node.args.args]
    keyword_only = [argument.arg for argument in node.args.kwonlyargs]
    optional = positional[len(positional) - len(node.args.defaults) :]
    optional += [name for name, default in zip(keyword_only, node.args.kw_defaults, strict=True) if default]
    return tuple(positional), tuple(keyword_only), tuple(optional)
