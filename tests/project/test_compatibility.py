"""The script that tries several llama.cpp: which, and with which tests. Its data: tests/project/test_tables.py."""

from __future__ import annotations

import compatibility
import figures
import pytest
from test_abi_headers import VERSIONS


def test_the_oldest_is_the_one_that_is_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLAMA_CPP_LIB_PATH", raising=False)
    oldest, newest, *apart = compatibility.libraries()
    assert oldest.requirement == f"llama-cpp-python=={VERSIONS['lowest']}"
    assert {one.requirement for one in (newest, *apart)} == {f"llama-cpp-python>={VERSIONS['lowest']},<0.4"}
    assert "LLAMA_CPP_LIB_PATH" not in {**oldest.environment, **newest.environment}
    assert [one.environment["LLAMA_CPP_LIB_PATH"] for one in apart] == [str(one.libraries) for one in apart]


BINDINGS = """
class {name}(ctypes.Structure):
    _fields_ = [
        ("n_ctx", ctypes.c_uint32),
        ("type_v", ctypes.c_int),
    ]
"""
HEADER = "struct {name} {{\n    {first}uint32_t n_ctx;\n    enum ggml_type type_v;{last}\n}};\n"


def _of_all(text: str, **texts: str) -> str:
    others = dict.fromkeys(texts, "")
    return "".join(
        text.format(name=name, **(texts if name == "llama_context_params" else others))
        for name in compatibility.BY_VALUE
    )


def test_bindings_get_the_fields_of_a_newer_header() -> None:
    bindings, header = _of_all(BINDINGS), _of_all(HEADER, first="bool early;\n    ", last="\n    size_t late;")
    context = "class llama_context_params(ctypes.Structure):\n    _fields_ = [\n"
    of_context = bindings[bindings.index(context) :]
    corrected = of_context.replace(context, context + '        ("early", ctypes.c_bool),\n', 1).replace(
        '("type_v", ctypes.c_int),\n', '("type_v", ctypes.c_int),\n        ("late", ctypes.c_size_t),\n', 1
    )
    assert compatibility.corrected(bindings, header) == bindings.replace(of_context, corrected)
    assert compatibility.corrected(bindings, _of_all(HEADER, first="", last="")) == bindings
    with pytest.raises(KeyError, match="new_type"):
        compatibility.corrected(bindings, _of_all(HEADER, first="", last="\n    struct new_type late;"))


@pytest.mark.parametrize("name", sorted({name for names in compatibility.GROUPS.values() for name in names}))
def test_its_tests_are_there(name: str) -> None:
    (found,) = compatibility.TESTS.glob(f"*/test_{name}.py")
    assert found.is_file()


def test_what_failed_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    old = {"name": "oldest", "llama_cpp_python": "0.3.16", "ggml": "0.9", "interface": 1, "kernels": "off: why"}
    new = {**old, "name": "next", "llama_cpp": "11434.0.0", "kernels": "AVX2"}
    tests = {"kernels": {"passed": 7, "failed": []}, "states": {"passed": 0, "failed": ["a", "b"]}}
    pairs = [("oldest", "oldest"), ("oldest", "next"), ("next", "oldest"), ("next", "next")]
    ends = [{"saved": one, "loaded": other, "end": f"{one}-{other}"} for one, other in pairs]
    found = {"libraries": [{**old, "tests": tests}, {**new, "tests": tests}], "states": ends}
    monkeypatch.setattr(figures, "load", lambda data, name: found)
    rows = figures.compatibility(compatibility.BUILD).splitlines()
    assert rows[2] == "| llama-cpp-python 0.3.16 | 0.9 | 1 | off: why | 7 pass | 0 pass, 2 fail |"
    assert rows[3].startswith("| llama.cpp b11434, under llama-cpp-python 0.3.16 | 0.9 | 1 | AVX2 | 7 pass |")
    assert figures.states(compatibility.BUILD).splitlines()[2:] == [
        "| 0.3.16 | oldest-oldest | oldest-next |",
        "| b11434 | next-oldest | next-next |",
    ]
