"""Greedy and coupled texts are those of plain decoding, token for token, for every draft and every gamma."""

from __future__ import annotations

import collections
import itertools
from typing import TYPE_CHECKING, Any

import pytest

import specllama

if TYPE_CHECKING:
    import llama_cpp
    from conftest import MakeBase, MakeLlama, TinyFiles

DRAFTS = ["none", "identical", "good", "bad", "adversarial", "padded_draft"]
GAMMAS = range(9)
LENGTH = 60
TEXT = b"the cat sat on the dog and"
SAMPLED: dict[str, dict[str, Any]] = {
    "default": {},
    "hot": {"temp": 1.3, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    "negative temperature": {"temp": -1.0},
    "typical": {"temp": 1.0, "typical_p": 0.6},
    "penalties": {"temp": 1.0, "repeat_penalty": 1.3, "frequency_penalty": 0.3, "presence_penalty": 0.2},
    "DRY": {"temp": 0.6, "dry_multiplier": 1.5, "dry_allowed_length": 1},
    "XTC": {"temp": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "xtc_probability": 0.5},
    "top-n-sigma": {"temp": 1.5, "top_n_sigma": 1.5, "min_p": 0.0},
    "dynamic temperature": {"temp": 1.0, "dynatemp_range": 0.8, "dynatemp_exponent": 1.3},
}


def tokens_of(llm: llama_cpp.Llama, **settings: Any) -> list[int]:
    """The first LENGTH tokens behind TEXT."""
    return list(itertools.islice(llm.generate(llm.tokenize(TEXT), **settings), LENGTH))


def assert_the_same_for_every_gamma(llm: specllama.Llama, **settings: Any) -> None:
    """Each gamma from 0 to 8 gives the text of plain decoding."""
    plain = tokens_of(llm, num_draft_tokens=0, **settings)
    assert len(set(plain)) > 5, "a text of few different tokens proves little"
    for gamma in GAMMAS:
        assert tokens_of(llm, num_draft_tokens=gamma, **settings) == plain, f"gamma={gamma}"
        assert llm.stats.fallback_reason is None


@pytest.mark.parametrize("rule", ["rejection", "block", "coupled", "auto"])
@pytest.mark.parametrize("draft", DRAFTS)
def test_greedy(make_llama: MakeLlama, tiny_files: TinyFiles, draft: str, rule: str) -> None:
    assert_the_same_for_every_gamma(make_llama(draft=tiny_files.draft(draft)), temp=0.0, verify=rule)


@pytest.mark.parametrize("draft", DRAFTS)
def test_greedy_with_penalties(make_llama: MakeLlama, tiny_files: TinyFiles, draft: str) -> None:
    settings = {"repeat_penalty": 1.4, "frequency_penalty": 0.5, "presence_penalty": 0.25}
    assert_the_same_for_every_gamma(make_llama(draft=tiny_files.draft(draft)), temp=0.0, **settings)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("chain", SAMPLED)
@pytest.mark.parametrize("draft", DRAFTS)
def test_coupled(make_llama: MakeLlama, tiny_files: TinyFiles, draft: str, chain: str) -> None:
    llm = make_llama(draft=tiny_files.draft(draft))
    for seed in (0, 1, 12345):
        llm.set_seed(seed)
        assert_the_same_for_every_gamma(llm, verify="coupled", **SAMPLED[chain])


def test_the_padded_model_as_target(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """The target has the longer vocabulary: q is zero where only p has rows."""
    llm = make_llama(tiny_files.padded, tiny_files.good)
    assert_the_same_for_every_gamma(llm, temp=0.0)
    llm.set_seed(3)
    assert_the_same_for_every_gamma(llm, verify="coupled", temp=1.0)


def test_a_prompt_with_a_token_that_the_draft_does_not_have(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """A padding row of the target in the prompt: the draft reads another token there, and the text stays the same."""
    llm = make_llama(tiny_files.padded, tiny_files.good, seed=3, verify="coupled")
    prompt = [1, 280, llm.n_vocab() - 1, 290]
    plain = list(itertools.islice(llm.generate(prompt, num_draft_tokens=0), LENGTH))
    assert list(itertools.islice(llm.generate(prompt), LENGTH)) == plain
    assert llm.stats.num_accepted_tokens > 0
    assert llm.stats.fallback_reason is None


def test_greedy_equals_the_base_class(make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles) -> None:
    base = make_base()
    llm = make_llama(draft=tiny_files.good)
    for text in (b"the cat", b"a", b"\x80\xff", b"on the dog, no fox is on it. " * 6):
        for settings in ({}, {"repeat_penalty": 1.3}, {"frequency_penalty": 0.7, "presence_penalty": -0.2}):
            expected = list(itertools.islice(base.generate(base.tokenize(text), temp=0.0, **settings), LENGTH))
            assert list(itertools.islice(llm.generate(llm.tokenize(text), temp=0.0, **settings), LENGTH)) == expected


@pytest.mark.parametrize("draft", ["good", "adversarial"])
@pytest.mark.parametrize("verify", ["auto", "coupled"])
def test_completions_with_logit_bias(make_llama: MakeLlama, tiny_files: TinyFiles, draft: str, verify: str) -> None:
    llm = make_llama(draft=tiny_files.draft(draft))
    usual = llm.create_completion("the cat", max_tokens=40, temperature=0.0)["choices"][0]["text"]
    word = llm.tokenize(b"the", add_bos=False)[0]
    common = collections.Counter(llm.tokenize(usual.encode(), add_bos=False)).most_common(1)[0][0]
    for bias in ({common: float("-inf")}, {word: 2.5, common: -3.0}, {2: -100.0}):
        for sampling in ({"temperature": 0.0}, {"temperature": 1.0, "seed": 3, "verify": verify}):
            texts = {
                llm.create_completion("the cat", max_tokens=40, logit_bias=bias, num_draft_tokens=gamma, **sampling)[
                    "choices"
                ][0]["text"]
                for gamma in (0, 1, 4, 8)
            }
            assert len(texts) == 1


def test_auto_with_a_seed_is_coupled_and_without_one_is_block(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good)
    llm.create_completion("the", max_tokens=5)
    assert llm.stats.verify == "block"
    llm.create_completion("the", max_tokens=5, seed=4)
    assert llm.stats.verify == "coupled"
    llm.set_seed(4)
    tokens_of(llm)
    assert llm.stats.verify == "coupled"
    seeded = make_llama(draft=tiny_files.good, seed=4)
    seeded.create_completion("the", max_tokens=5)
    assert seeded.stats.verify == "coupled"


@pytest.mark.parametrize("verify", ["rejection", "block", "coupled", "auto"])
def test_a_seed_repeats_a_text_and_another_seed_does_not(
    make_llama: MakeLlama, tiny_files: TinyFiles, verify: str
) -> None:
    llm = make_llama(draft=tiny_files.good, verify=verify)

    def text(seed: int | None) -> str:
        return str(llm.create_completion("the cat", max_tokens=30, temperature=1.0, seed=seed)["choices"][0]["text"])

    assert text(1) == text(1)
    assert text(1) != text(2)
    assert text(0) == text(0)
    assert len({text(None) for _ in range(4)}) == 4


def test_a_seed_in_the_constructor_means_the_same_text_for_fresh_objects(
    make_llama: MakeLlama, tiny_files: TinyFiles
) -> None:
    texts = [
        make_llama(draft=tiny_files.draft(draft), seed=11).create_completion("the cat", max_tokens=30)["choices"][0][
            "text"
        ]
        for draft in ("none", "good", "bad", "good")
    ]
    assert len(set(texts)) == 1
