"""llama_decode that fails in the middle: a clear exception, nothing lost, and the next call equals a fresh object's."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import llama_cpp
import pytest
from fresh import PROMPT, assert_like_fresh

import specllama

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles


@contextlib.contextmanager
def aborting(llama: llama_cpp.Llama) -> Iterator[None]:
    """Every llama_decode of this Llama is aborted while it computes, and returns 2."""
    abort = llama_cpp.ggml_abort_callback(lambda _: True)
    never = llama_cpp.ggml_abort_callback(lambda _: False)
    llama_cpp.llama_set_abort_callback(llama._ctx.ctx, abort, ctypes.c_void_p(None))
    try:
        yield
    finally:
        llama_cpp.llama_set_abort_callback(llama._ctx.ctx, never, ctypes.c_void_p(None))
        llama.__dict__["_never_abort"] = never  # llama.cpp keeps calling it


def test_the_target_is_aborted(llm: specllama.Llama, make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    prompt = llm.tokenize(PROMPT.encode())
    tokens = llm.generate(prompt, temp=0.0)
    first = list(itertools.islice(tokens, 7))
    with aborting(llm), pytest.raises(specllama.DecodeError, match=r"returned 2 on the target: aborted"):
        first += list(tokens)  # what the last round left, then the failure
    assert llm.stats.num_tokens >= 7
    assert llm.n_tokens <= len(prompt) + llm.stats.num_tokens
    whole = list(itertools.islice(make_llama().generate(prompt, temp=0.0), 20))
    assert first[:7] == whole[:7]
    assert_like_fresh(llm, make_llama, tiny_files)


def test_the_prompt_is_aborted(llm: specllama.Llama, make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    with aborting(llm), pytest.raises(specllama.DecodeError, match=r"returned 2 on the target: aborted"):
        llm.create_completion(PROMPT * 3, max_tokens=5)
    assert_like_fresh(llm, make_llama, tiny_files)


def test_a_draft_that_fails_costs_no_text(llm: specllama.Llama, make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    prompt = llm.tokenize(PROMPT.encode())
    whole = list(itertools.islice(make_llama().generate(prompt, temp=0.0), 40))
    tokens = llm.generate(prompt, temp=0.0)
    first = list(itertools.islice(tokens, 7))
    assert llm.draft_model is not None
    with aborting(llm.draft_model), pytest.warns(specllama.FallbackWarning, match=r"returned 2 on the draft"):
        first += list(itertools.islice(tokens, 33))
    assert first == whole
    tokens.close()
    assert "returned 2 on the draft" in str(llm.stats.fallback_reason)
    assert_like_fresh(llm, make_llama, tiny_files)
    assert llm.stats.num_drafts > 0  # the next generation tries the draft again
    assert llm.stats.fallback_reason is None


def test_a_draft_that_fails_in_its_prompt_costs_no_text(
    llm: specllama.Llama, make_llama: MakeLlama, tiny_files: TinyFiles
) -> None:
    assert llm.draft_model is not None
    with aborting(llm.draft_model), pytest.warns(specllama.FallbackWarning, match=r"returned 2 on the draft"):
        out = llm.create_completion(PROMPT * 2, max_tokens=20, temperature=0.0)
    plain = make_llama().create_completion(PROMPT * 2, max_tokens=20, temperature=0.0)
    assert out["choices"][0]["text"] == plain["choices"][0]["text"]
    assert llm.stats.num_drafts == 0
    assert_like_fresh(llm, make_llama, tiny_files)
