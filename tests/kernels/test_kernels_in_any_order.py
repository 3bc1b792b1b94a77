"""Kernels whatever llama_cpp has loaded before, keeps and loads later. Its own models stay as they are without ours."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_models
from quantized import KERNELS, needs_kernels, quantized_model

pytestmark = needs_kernels

BEGIN = """
import ctypes, sys, threading
import llama_cpp, numpy as np
path, lora = sys.argv[1:]
SETTINGS = dict(n_ctx=128, n_threads=2, n_threads_batch=2, verbose=False)

def theirs():
    return llama_cpp.Llama(path, logits_all=True, **SETTINGS)

def logits(llm):
    llm.reset()
    llm.eval(llm.tokenize(b"the cat sat on the dog and the fox"))
    return llm.scores[: llm.n_tokens].copy()

def ours():
    import specllama
    llm = specllama.Llama(path, **SETTINGS)
    print(llm.kernels.partition(",")[0], llm("the cat", max_tokens=8, temperature=0)["choices"][0]["text"])
    return llm
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model and a LoRA adapter for it."""
    folder = tmp_path_factory.mktemp("order")
    weights = tiny_models.llama_weights(tiny_models.word_vocabulary(), 5, n_embd=256, n_ff=512)
    return quantized_model(folder, "Q4_K_M"), tiny_models.write_lora(folder / "lora.gguf", weights, seed=1)


def printed(files: tuple[Path, Path], script: str, **environment: str) -> str:
    """What a process of its own prints: what has been loaded holds for a process."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", BEGIN + script, *map(str, files)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "OMP_THREAD_LIMIT": "2", **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@functools.cache
def alone(files: tuple[Path, Path]) -> str:
    """What specllama's model says where nothing else is loaded."""
    text = printed(files, "ours()")
    assert text.startswith(KERNELS.instruction_set)
    return text


@pytest.mark.long
def test_models_of_llama_cpp_before_and_after_are_left_as_they_are(files: tuple[Path, Path]) -> None:
    script = """
kept, freed = theirs(), theirs()
expected = logits(kept)
assert np.array_equal(logits(freed), expected)
freed.close()
llm = ours()
from specllama import _core
packed = _core.KernelBufferType.bytes_loaded()
assert np.array_equal(logits(kept), expected)
later = theirs()
assert np.array_equal(logits(later), expected)
llm.close()
assert np.array_equal(logits(later), expected)
assert np.array_equal(logits(kept), expected)
kept.close()
assert np.array_equal(logits(theirs()), expected)
assert packed == _core.KernelBufferType.bytes_loaded() > 0
ours()
"""
    assert printed(files, script) == 2 * alone(files)


def test_a_model_of_llama_cpp_may_be_computed_meanwhile(files: tuple[Path, Path]) -> None:
    """Places of ggml's are taken while its threads use them."""
    script = """
busy, done, found = theirs(), threading.Event(), []
expected = logits(busy)

def decode():
    while not done.is_set():
        found.append(np.array_equal(logits(busy), expected))

thread = threading.Thread(target=decode)
thread.start()
while len(found) < 20:
    pass
ours()
before = len(found)
while len(found) < before + 20:
    pass
done.set()
thread.join()
assert all(found)
"""
    assert printed(files, script) == alone(files)


def test_an_adapter_that_is_loaded_by_hand_is_llama_cpps(files: tuple[Path, Path]) -> None:
    """It looks for the buffer types once more, and keeps its weights out of them."""
    script = """
kept = theirs()
llm = ours()
adapter = llama_cpp.llama_adapter_lora_init(llm._model.model, lora.encode())
assert adapter
llama_cpp.llama_adapter_lora_free(adapter)
"""
    assert printed(files, script) == alone(files)
