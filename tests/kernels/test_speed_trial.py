"""Types of weights that llama.cpp multiplies faster on this machine are left to it: measured once, by a trial."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from llama_cpp import llama_cpp as bindings
from quantized import KERNELS, needs_kernels, quantized_model
from test_kernels_in_llama_cpp import logits_of, opened

from specllama.backend import kernels
from specllama.backend.kernels import Kernels, slower
from specllama.backend.trial import Trial
from specllama.drop_in.lending import lent

pytestmark = needs_kernels

LIBRARY = bindings._lib._name


def printed(script: str, *arguments: str) -> str:
    """What a script prints in a process of its own: the kernels take their place once in a process."""
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("name", "ours_are_faster"), [(KERNELS.instruction_set, True), ("plain", False)])
def test_both_are_measured(name: str, ours_are_faster: bool) -> None:
    found = printed(
        "import sys\n"
        "from specllama.backend import _speed_trial as trial\n"
        "trial._BYTES = 1 << 21\n"
        "print(trial.main(*sys.argv[1:]))\n",
        LIBRARY,
        name,
        "Q4_K",
    )
    if ours_are_faster:
        assert found == "\n"
    else:
        assert found.startswith("llama.cpp's own products of Q4_K take 0.")


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The types of weights whose products llama.cpp is said to compute faster."""
    kinds: set[str] = set()

    def tried(name: str, arguments: list[str], **_: object) -> Trial:
        return Trial(arguments[2] not in kinds, f"{arguments[2]} is slow" if arguments[2] in kinds else "")

    monkeypatch.setattr(kernels, "tried", tried)
    monkeypatch.delenv(kernels.ENVIRONMENT, raising=False)
    return kinds


def test_a_type_is_left_to_llama_cpp_beside_others(tmp_path: Path, slow: set[str]) -> None:
    """CPU_REPACK has both in one buffer: packed weights, and those that llama.cpp brings into its own order."""
    path, sizes = quantized_model(tmp_path, "Q4_K_M"), {}
    expected = logits_of(opened(path, kernels="off"), (4,))
    for left in ("", "Q4_K", "Q6_K"):
        slow.clear()
        slow.add(left)
        llm = opened(path)
        assert llm.kernels.startswith(f"{KERNELS.instruction_set}, ")
        assert np.abs(logits_of(llm, (4,)) - expected).mean() < 0.05 * expected.std()
        sizes[left] = lent(llm).settings.kernels.num_bytes
        llm.close()
    assert sizes["Q4_K"] + sizes["Q6_K"] == sizes[""]


def test_where_all_are_left_the_kernels_are_off(tmp_path: Path, slow: set[str]) -> None:
    path = quantized_model(tmp_path, "Q4_0")
    slow |= {"Q4_0", "Q6_K"}
    llm = opened(path)
    assert llm.kernels == "off: Q4_0 is slow; Q6_K is slow"
    assert np.array_equal(logits_of(llm, (4,)), logits_of(opened(path, kernels="off"), (4,)))


def test_nothing_is_measured_where_the_user_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def tried(name: str, arguments: list[str], **_: object) -> Trial:
        asked.append(arguments[2])
        return Trial(False, "slower")

    monkeypatch.setattr(kernels, "tried", tried)
    monkeypatch.delenv(kernels.ENVIRONMENT, raising=False)
    assert slower(KERNELS, ["F32", "Q4_K", "Q6_K", "Q4_K"]) == {"Q4_K": "slower", "Q6_K": "slower"}
    assert asked == ["Q4_K", "Q6_K"]
    monkeypatch.setenv(kernels.ENVIRONMENT, KERNELS.instruction_set)
    assert slower(KERNELS, ["Q4_K"]) == {}
    monkeypatch.delenv(kernels.ENVIRONMENT)
    assert slower(Kernels(), ["Q4_K"]) == {}
    assert len(asked) == 2
