"""Functions of ggml's that some builds do not export, or that a system looks for elsewhere."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
from quantized import KERNELS, needs_kernels, quantized_model

from specllama.backend.ggml import CpuBackend, _loaded_beside

LIBRARY = llama_cpp.llama_cpp._lib
WITHOUT = """
import json, sys
from specllama.backend.ggml import CpuBackend
has, asked = CpuBackend.has, []
CpuBackend.has = lambda self, name: (asked.append(name) or name not in sys.argv[1].split()) and has(self, name)
"""
TRIAL = """
from specllama.backend import _kernel_trial
why_not = _kernel_trial.main(*sys.argv[2:])
print(json.dumps([asked.count("ggml_barrier"), why_not]))
"""
TEXTS = """
import specllama
from specllama.drop_in.lending import lent
texts, prompt = [], "the cat sat on the dog and the fox"
for n in (1, 2, 5):
    llm = specllama.Llama(sys.argv[2], n_ctx=256, n_threads=n, n_threads_batch=n, flash_attn=True, verbose=False)
    assert lent(llm).settings.kernels.num_bytes > 0
    texts.append(llm(prompt, max_tokens=60, temperature=1.5, seed=3)["choices"][0]["text"])
print(json.dumps([asked.count("ggml_barrier"), texts]))
"""


def said(program: str, *arguments: str) -> Any:
    """What a process prints that does without some of ggml's functions."""
    command = [sys.executable, "-c", WITHOUT + program, *arguments]
    return json.loads(subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout)


@needs_kernels
def test_products_are_right_without_ggmls_barrier() -> None:
    asked, why_not = said(TRIAL, "ggml_barrier", LIBRARY._name, KERNELS.instruction_set)
    assert asked == 1
    assert why_not == ""


@needs_kernels
def test_texts_are_the_same_without_ggmls_barrier(tmp_path: Path) -> None:
    """With threads that outnumber the cores, too: a thread that waits must let the others work."""
    model = str(quantized_model(tmp_path, "Q4_K_M"))
    without, texts = said(TEXTS, "ggml_barrier", model)
    _, expected = said(TEXTS, "", model)
    assert without >= 1
    assert len({*texts, *expected}) == 1


def test_a_function_that_is_missing_is_named() -> None:
    cpu = CpuBackend(LIBRARY)
    assert not cpu.has("ggml_nowhere")
    with pytest.raises(LookupError, match="ggml has no function ggml_nowhere"):
        cpu.address("ggml_nowhere")


def test_windows_looks_into_the_libraries_that_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There a library gives its own functions only. Libraries of other backends are not loaded by looking."""

    class Handle:
        def __call__(self, path: str) -> int | None:
            return {"ggml-base.dll": 5, "libggml-cpu.dll": 7}.get(Path(path).name)

    class Library:
        def __init__(self, path: str, handle: int) -> None:
            setattr(self, f"function_of_{handle}", (path, handle))

    class Llama:
        _name = str(tmp_path / "llama.dll")

    class Kernel32:
        GetModuleHandleW = Handle()

    for name in ("ggml.dll", "ggml-base.dll", "libggml-cpu.dll", "ggml-cuda.dll", "llama.dll"):
        (tmp_path / name).touch()
    _loaded_beside.cache_clear()
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(ctypes, "WinDLL", lambda name: Kernel32(), raising=False)
    monkeypatch.setattr(ctypes, "CDLL", Library)
    cpu = object.__new__(CpuBackend)
    cpu._library = Llama()  # type: ignore[assignment]
    found = [name for name in ("function_of_5", "function_of_7", "function_of_0") if cpu.has(name)]
    _loaded_beside.cache_clear()
    assert found == ["function_of_5", "function_of_7"]
