"""What the extensions say of themselves: stubs, which the build writes, and what documents their structs."""

from __future__ import annotations

import ast
import types
from pathlib import Path

import numpy as np
import pytest

from specllama import _core
from specllama import _core_test as _test


@pytest.mark.parametrize("module", [_core, _test])
def test_the_stub_has_what_the_extension_has(module: types.ModuleType) -> None:
    stub = Path(str(module.__file__)).parent / f"{module.__name__.rpartition('.')[2]}.pyi"
    if not stub.is_file():
        pytest.skip("an extension with sanitizers has no stub")
    body = ast.parse(stub.read_text(encoding="utf-8")).body
    found = {node.name for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    assert found >= {name for name, member in vars(module).items() if name[0] != "_" and callable(member)}


def test_a_struct_is_read_only_and_shows_its_fields() -> None:
    index = _test.SuffixIndex()
    index.append(np.array([1, 2, 3, 1, 2], dtype=np.int32))
    match = index.longest()
    assert repr(match) == "Match(next=2, length=2, num_other=0)"
    with pytest.raises(AttributeError):
        match.length = 3


def test_every_struct_and_its_fields_are_documented() -> None:
    for module in (_core, _test):
        for name, member in vars(module).items():
            if isinstance(member, type) and not issubclass(member, Exception) and "__repr__" in vars(member):
                fields = {field: got for field, got in vars(member).items() if isinstance(got, property)}
                assert fields
                assert member.__doc__, name
                assert [field for field, got in fields.items() if not got.__doc__] == [], name
