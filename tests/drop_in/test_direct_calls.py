"""What goes straight to llama_cpp's own methods, or to llama.cpp: whatever they are given, the process goes on."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import tiny_models as tiny

if TYPE_CHECKING:
    from conftest import MakeLlama

METHODS = ["embed", "tokenize", "detokenize", "token", "sample", "state", "functions"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of each kind of vocabulary, and an encoder."""
    folder = tmp_path_factory.mktemp("models")
    words, pairs = tiny.word_vocabulary(), tiny.byte_pair_vocabulary("gpt-4o")
    tiny.write_llama(folder / "words.gguf", words, tiny.llama_weights(words, 1))
    tiny.write_llama(folder / "pairs.gguf", dataclasses.replace(pairs, adds_bos=False), tiny.llama_weights(pairs, 1))
    tiny.write_embedding_model(folder / "encoder.gguf", 1)
    tiny.write_embedding_model(folder / "reranker.gguf", 1, num_scores=2)
    letters = tiny.letter_vocabulary()
    tiny.write_llama(folder / "letters.gguf", letters, tiny.llama_weights(letters, 1))
    tiny.write_recurrent(folder / "recurrent.gguf", words, 1)
    return folder


def assert_lives(method: str, seed: int, count: int, models: Path) -> None:
    """In a process of its own, some calls succeed and some raise, and all of them return."""
    script = str(Path(__file__).parents[1] / "helpers" / "direct_calls.py")
    ended = subprocess.run(
        [sys.executable, script, method, str(seed), str(count), str(models)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, f"seed {seed}: {ended.stdout[-500:]}\n{ended.stderr[-2000:]}"
    assert ended.stdout.startswith(f"{count} ")
    assert "no error" in ended.stdout


@pytest.mark.parametrize("method", METHODS)
def test_some_calls(models: Path, method: str) -> None:
    assert_lives(method, 1, 60, models)


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_many_calls(models: Path, method: str) -> None:
    assert_lives(method, 2, int(os.environ.get("SPECLLAMA_CASES", "300")), models)  # by hand once: 2000


def test_a_sample_of_logits_that_there_are(make_llama: MakeLlama) -> None:
    llm = make_llama()
    with pytest.raises(ValueError, match=r"eval\(\) tokens before"):
        llm.sample(temp=0.0)
    llm.eval([1, 5, 7])
    last = llm.sample(temp=0.0)
    assert last == llm.sample(temp=0.0, idx=2) == next(llm.generate([1, 5, 7], temp=0.0))
    llm.reset()
    llm.eval([1, 5, 7])
    for idx, message in ((3, "tokens 0 to 2 are evaluated"), (100, "out of range"), (-1, "out of range")):
        with pytest.raises(ValueError, match=message):
            llm.sample(temp=0.0, idx=idx)
    with pytest.raises(ValueError, match="no logits of this token"):
        llm.sample(temp=0.0, idx=0)
    with pytest.raises(TypeError, match="idx"):
        llm.sample(temp=0.0, idx="1")  # type: ignore[arg-type]
    assert llm.sample(temp=0.0) == last
