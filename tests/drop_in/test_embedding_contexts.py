"""Texts of a Llama that embeds, too: no context in which one is generated embeds or pools, and the embeddings stay."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import TinyFiles

PROGRAM = """
import json, sys
import llama_cpp
from specllama import Llama
asked = json.loads(sys.argv[1])
common = {"n_ctx": 256, "n_threads": 1, "verbose": False, "num_draft_tokens": 4}
prompts = ["the cat sat on the dog and the fox in the house", "a fox", "the dog ran to the house and it", "she"]


def texts(llm):
    one = [llm.create_completion(prompt, max_tokens=12, temperature=0.0)["choices"][0]["text"] for prompt in prompts]
    many = llm.create_completions(prompts, max_tokens=12, temperature=0.0, max_parallel=3)
    return one, [outcome.text for outcome in many]


def embedded(llm):
    return [llm.embed(prompt) for prompt in prompts[:2]]


expected = texts(Llama(asked["target"], **common))[0]
draft = asked["draft"]
if asked["lends"]:
    draft = llama_cpp.Llama(draft, **asked["draft_kwargs"], n_ctx=256, n_threads=1, verbose=False)
    asked["draft_kwargs"] = None
llm = Llama(asked["target"], draft_model=draft, draft_kwargs=asked["draft_kwargs"], **asked["own"], **common)
answers = {"one": True, "many": True, "embed": True}
before = embedded(llm) if asked["own"].get("embedding") else None
for _ in range(2):
    one, many = texts(llm)
    answers["one"] &= one == expected
    answers["many"] &= many == expected
    answers["embed"] &= before is None or embedded(llm) == before
if asked["lends"]:
    alone = llama_cpp.Llama(asked["draft"], embedding=True, pooling_type=1, n_ctx=256, n_threads=1, verbose=False)
    answers["embed"] &= embedded(draft) == embedded(alone)
print(json.dumps(answers))
"""


def assert_texts(target: object, draft: object = None, *, lends: bool = False, **own: Any) -> None:
    """In a child, which a wrong context would end: texts are those of a Llama that embeds nothing."""
    draft_kwargs = own.pop("draft_kwargs", None)
    given = [str(each) for each in draft] if isinstance(draft, list) else None if draft is None else str(draft)
    asked = {"target": str(target), "draft": given, "lends": lends, "own": own, "draft_kwargs": draft_kwargs}
    command = [sys.executable, "-c", PROGRAM, json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"one": True, "many": True, "embed": True}


@pytest.mark.parametrize("draft", ["mtp", "auto", "list"])
def test_mtp_layers_of_a_model_that_embeds(tiny_files: TinyFiles, draft: str) -> None:
    given = ["mtp", tiny_files.good] if draft == "list" else draft
    assert_texts(tiny_files.mtp, given, embedding=True)


def test_mtp_layers_of_a_hybrid_model_that_embeds(tiny_files: TinyFiles) -> None:
    assert_texts(tiny_files.mtp_hybrid, "mtp", embedding=True)


@pytest.mark.parametrize("pooling", range(4))
@pytest.mark.sampled(2)
def test_several_texts_of_a_model_that_pools(tiny_files: TinyFiles, pooling: int) -> None:
    assert_texts(tiny_files.target, embedding=True, pooling_type=pooling)


@pytest.mark.parametrize("draft", ["lent", "kwargs", "head"])
def test_several_texts_with_a_draft_that_pools(tiny_files: TinyFiles, draft: str) -> None:
    pools: dict[str, Any] = {"embedding": True, "pooling_type": 1}
    if draft == "head":
        assert_texts(tiny_files.deep, tiny_files.deep_head, **pools)
    else:
        assert_texts(tiny_files.target, tiny_files.good, lends=draft == "lent", draft_kwargs=pools)


def test_a_hybrid_model_that_embeds(tiny_files: TinyFiles) -> None:
    """Of some of them llama.cpp computes no logits where it is asked for embeddings."""
    assert_texts(tiny_files.hybrid, "lookup", embedding=True, pooling_type=3)
