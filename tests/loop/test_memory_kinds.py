"""Sliding windows, as target and as draft. Recurrent and hybrid models: test_recurrent.py."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tiny_models as tiny

from specllama.drop_in.lending import lent

if TYPE_CHECKING:
    import llama_cpp
    from conftest import MakeBase, MakeLlama, TinyFiles

PROMPT = "the cat sat on the dog and no fox is in it. "
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 60}
COUPLED: dict[str, Any] = {"temperature": 0.9, "seed": 3, "verify": "coupled", "max_tokens": 60}


def text_of(llm: llama_cpp.Llama, prompt: str = PROMPT, **settings: Any) -> str:
    return str(llm.create_completion(prompt, **settings)["choices"][0]["text"])


def tokens_of(llm: llama_cpp.Llama, prompt: str) -> list[int]:
    """60 greedy tokens."""
    return list(itertools.islice(llm.generate(llm.tokenize(prompt.encode()), temp=0.0), 60))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("swa_full", [True, False, None])
@pytest.mark.parametrize("gamma", [1, 4, 8])
def test_sliding_window(
    make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles, swa_full: bool | None, gamma: int
) -> None:
    """With the full cache and with one that forgets what lies behind the window: the text is that of plain decoding."""
    base = make_base(tiny_files.sliding, swa_full=swa_full)
    plain = make_llama(tiny_files.sliding, swa_full=swa_full)
    for draft in (tiny_files.sliding, tiny_files.sliding_draft, tiny_files.bad):
        llm = make_llama(
            tiny_files.sliding, draft, swa_full=swa_full, num_draft_tokens=gamma, draft_kwargs={"swa_full": swa_full}
        )
        for prompt in (PROMPT, PROMPT * 3, "a"):
            expected = text_of(base, prompt, **GREEDY)
            assert text_of(plain, prompt, **GREEDY) == expected
            assert text_of(llm, prompt, **GREEDY) == expected
            assert llm.stats.num_drafts > 0
            assert llm.stats.fallback_reason is None
            assert text_of(llm, prompt, **COUPLED) == text_of(plain, prompt, **COUPLED)


@pytest.mark.parametrize("swa_full", [True, False])
def test_a_draft_of_a_sliding_window_model_is_accepted_as_by_full_attention(
    make_llama: MakeLlama, tiny_files: TinyFiles, swa_full: bool
) -> None:
    llm = make_llama(
        tiny_files.sliding, tiny_files.sliding, swa_full=swa_full, draft_kwargs={"swa_full": swa_full}, seed=1
    )
    text_of(llm, PROMPT, temperature=1.0, max_tokens=200)
    assert llm.stats.acceptance_rate > 0.95
    assert "window" in llm.stats.rollback


@pytest.mark.parametrize("swa_full", [True, False])
def test_prefix_reuse_across_a_window(make_llama: MakeLlama, tiny_files: TinyFiles, swa_full: bool) -> None:
    """Back to a prompt whose window may be gone: reused or decoded again, never a stale window."""
    llm = make_llama(tiny_files.sliding, tiny_files.sliding_draft, swa_full=swa_full)
    first = text_of(llm, **GREEDY)
    assert len(llm.tokenize(first.encode())) > tiny.WINDOW
    assert text_of(llm, **GREEDY) == first
    longer = PROMPT + first[: len(first) // 2]
    expected = text_of(make_llama(tiny_files.sliding, swa_full=swa_full), longer, **GREEDY)
    assert text_of(llm, longer, **GREEDY) == expected
    text_of(llm, "a dog", **GREEDY)
    assert text_of(llm, longer, **GREEDY) == expected


@pytest.mark.sampled(1)
@pytest.mark.parametrize("draft", ["none", "sliding_draft"])
def test_a_prompt_whose_window_is_gone(make_llama: MakeLlama, tiny_files: TinyFiles, draft: str) -> None:
    """The windowed cells (256 here) have been overwritten by a long text; going back must not find an empty window."""
    kwargs: dict[str, Any] = {"swa_full": False, "n_ctx": 1024, "n_batch": 32, "n_ubatch": 32}
    llm = make_llama(tiny_files.sliding, tiny_files.draft(draft), draft_kwargs=None, **kwargs)
    prompts = [PROMPT * 2, "a dog"]
    for prompt in prompts:
        expected = tokens_of(make_llama(tiny_files.sliding, **kwargs), prompt)
        long_text = list(itertools.islice(llm.generate(llm.tokenize(prompt.encode()), temp=0.0), 700))
        assert long_text[:60] == expected
        assert tokens_of(llm, prompt) == expected
        assert llm.stats.fallback_reason is None
    for count in (20, 500, 690):  # back into the middle of a long text, inside the window and far before it
        context = llm.tokenize(prompts[-1].encode()) + long_text[:count]
        list(itertools.islice(llm.generate(context[:5], temp=0.0), 700))
        again = list(itertools.islice(llm.generate(context, temp=0.0), 20))
        assert again == list(itertools.islice(make_llama(tiny_files.sliding, **kwargs).generate(context, temp=0.0), 20))


def test_a_long_batch_behind_a_rollback(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """Of a batch in parts, llama.cpp removes cells for the last part that the first one needs."""
    tokens = np.random.default_rng(1).integers(259, 330, 600).astype(np.int32)
    found = []
    for swa_full in (False, True):
        llm = make_llama(tiny_files.sliding, swa_full=swa_full, n_ctx=1024, n_batch=256, n_ubatch=64)
        sequence = lent(llm).sequence
        for start, end in ((0, 256), (256, 258), (58, 314)):
            sequence.keep(start)
            rows = []
            for at in range(start, end, llm.n_batch):
                part = tokens[start + at :][: min(llm.n_batch, end - at)]  # other tokens behind each rollback
                sequence.decode(part, 0)
                rows += [sequence.logits(i).copy() for i in range(len(part))]
        found.append(np.array(rows))
    assert np.abs(found[0] - found[1]).max() < 0.02


@pytest.mark.parametrize("swa_full", [True, False])
def test_interruptions_with_a_sliding_window(make_llama: MakeLlama, tiny_files: TinyFiles, swa_full: bool) -> None:
    llm = make_llama(tiny_files.sliding, tiny_files.sliding, swa_full=swa_full, num_draft_tokens=8)
    whole = text_of(make_llama(tiny_files.sliding, swa_full=swa_full), **GREEDY)
    for max_tokens in (1, 3, 6, 20, 41):
        part = text_of(llm, temperature=0.0, max_tokens=max_tokens)
        assert whole.startswith(part) or "\ufffd" in part
        assert text_of(llm, **GREEDY) == whole
    tokens = llm.generate(llm.tokenize(PROMPT.encode()), temp=0.0)
    list(itertools.islice(tokens, 13))
    tokens.close()
    assert text_of(llm, **GREEDY) == whole
