"""Whether an object that has been through something still does what a fresh one does."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import llama_cpp

import specllama

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

RULES = ["rejection", "block", "coupled"]
PROMPT = "the cat sat on the dog and"
SAMPLING: dict[str, Any] = {"temperature": 0.9, "seed": 5, "max_tokens": 40}


def text_of(llm: llama_cpp.Llama, prompt: str = PROMPT, **settings: Any) -> str:
    """The completion of a prompt."""
    return str(llm.create_completion(prompt, **{**SAMPLING, **settings})["choices"][0]["text"])


def assert_like_fresh(llm: specllama.Llama, make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """The next calls, with the same and with another prompt, say what a fresh object says; nothing is decoded twice."""
    fresh = make_llama(draft=tiny_files.identical, num_draft_tokens=6, verify=llm.verify)
    for prompt in (PROMPT, PROMPT + " no fox", "a dog"):
        assert text_of(llm, prompt) == text_of(fresh, prompt)
        assert llm.stats.fallback_reason is None
        assert llm.stats.acceptance_rate > 0.9
        assert_nothing_decoded_twice(llm)


def assert_texts_of_plain_decoding(
    llm: specllama.Llama, plain: specllama.Llama, rule: str, prompts: list[str], lengths: list[int | str]
) -> None:
    """Greedy ones; seeded ones, too, by the rule under which a seed means one text."""
    sampled: list[dict[str, Any]] = [{"temperature": 0.0}]
    if rule == "coupled":
        sampled += [{"temperature": 0.9}, {"temperature": 1.3, "top_k": 0, "repeat_penalty": 1.3}]
    for settings, gamma in itertools.product(sampled, lengths):
        llm.num_draft_tokens = gamma
        for prompt in prompts:
            assert text_of(llm, prompt, **settings) == text_of(plain, prompt, verify="coupled", **settings)
            assert llm.stats.fallback_reason is None


def assert_nothing_decoded_twice(llm: specllama.Llama) -> None:
    """The target decodes what of the prompt it lacks, and then one token for each that was drafted or emitted."""
    stats = llm.stats
    prompt = stats.num_prompt_tokens - stats.num_prompt_tokens_reused
    rejected = stats.num_draft_tokens - stats.num_accepted_tokens
    assert stats.num_target_tokens_decoded <= prompt + stats.num_tokens + rejected + llm.num_draft_tokens
