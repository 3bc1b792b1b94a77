"""The script that tries several llama.cpp: which ones, and with which tests. Its data: see tests/test_tables.py."""

from __future__ import annotations

import compatibility
import figures
import pytest
from test_abi_headers import VERSIONS


def test_the_oldest_is_the_one_that_is_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLAMA_CPP_LIB_PATH", raising=False)
    oldest, newest, following = compatibility.libraries()
    assert oldest.requirement == f"llama-cpp-python=={VERSIONS['lowest']}"
    assert newest.requirement == following.requirement == f"llama-cpp-python>={VERSIONS['lowest']},<0.4"
    assert "LLAMA_CPP_LIB_PATH" not in {**oldest.environment, **newest.environment}
    assert following.environment["LLAMA_CPP_LIB_PATH"] == str(following.libraries)


@pytest.mark.parametrize("name", sorted({name for names in compatibility.GROUPS.values() for name in names}))
def test_its_tests_are_there(name: str) -> None:
    assert (compatibility.TESTS / f"test_{name}.py").is_file()


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
