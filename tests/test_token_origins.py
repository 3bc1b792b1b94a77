"""generate_tokens: the tokens of a completion, one by one, and where each came from."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

PROMPT = "the cat sat on the dog and"


@pytest.mark.parametrize("draft", ["identical", "good", "bad", "adversarial"])
def test_origins_add_up_to_the_statistics(tiny_files: TinyFiles, make_llama: MakeLlama, draft: str) -> None:
    llm = make_llama(tiny_files.target, tiny_files.draft(draft), num_draft_tokens=3)
    tokens = list(llm.generate_tokens(PROMPT, max_tokens=60, temperature=1.0, seed=5))
    stats = llm.stats
    count = collections.Counter(token.origin for token in tokens)
    assert len(tokens) == stats.num_tokens == 60
    assert count["draft"] == stats.num_accepted_tokens
    assert count["correction"] + count["bonus"] == stats.num_drafts
    assert count["plain"] == 60 - stats.num_accepted_tokens - stats.num_drafts
    if draft == "identical":
        assert count["correction"] == 0


def test_plain_decoding_is_plain(tiny_files: TinyFiles, make_llama: MakeLlama) -> None:
    llm = make_llama(tiny_files.target, tiny_files.good)
    tokens = llm.generate_tokens(PROMPT, max_tokens=10, num_draft_tokens=0)
    assert {token.origin for token in tokens} == {"plain"}


@pytest.mark.parametrize("stop", [[], ["a"], ["zzz"]])
def test_texts_together_are_the_completion(tiny_files: TinyFiles, make_llama: MakeLlama, stop: list[str]) -> None:
    llm = make_llama(tiny_files.target, tiny_files.good)
    settings = {"max_tokens": 60, "temperature": 1.0, "seed": 3, "stop": stop}
    tokens = list(llm.generate_tokens(PROMPT, **settings))
    stats = llm.stats
    assert "".join(token.text for token in tokens) == llm.create_completion(PROMPT, **settings)["choices"][0]["text"]
    first = stats.num_prompt_tokens
    assert [token.id for token in tokens] == llm.input_ids[first : first + len(tokens)].tolist()


def test_an_abandoned_iterator_leaves_the_llama_usable(tiny_files: TinyFiles, make_llama: MakeLlama) -> None:
    llm = make_llama(tiny_files.target, tiny_files.good)
    expected = [token.id for token in llm.generate_tokens(PROMPT, max_tokens=20, temperature=0.0)]
    tokens = llm.generate_tokens(PROMPT, max_tokens=20, temperature=0.0)
    assert next(tokens).id == expected[0]
    del tokens
    assert [token.id for token in llm.generate_tokens(PROMPT, max_tokens=20, temperature=0.0)] == expected


def test_bad_arguments_are_refused(tiny_files: TinyFiles, make_llama: MakeLlama) -> None:
    llm = make_llama(tiny_files.target, tiny_files.good)
    with pytest.raises(ValueError, match="unknown verify='exact'"):
        llm.generate_tokens(PROMPT, verify="exact")
    with pytest.raises(TypeError, match="max_token"):
        llm.generate_tokens(PROMPT, max_token=3)


def test_reset_forgets_in_both_models(tiny_files: TinyFiles, make_llama: MakeLlama) -> None:
    llm = make_llama(tiny_files.target, tiny_files.good)
    decoded = []
    for reset in (True, False, True):
        if reset:
            llm.reset()
        list(llm.generate_tokens(PROMPT, max_tokens=8, temperature=0.0))
        decoded.append((llm.stats.num_target_tokens_decoded, llm.stats.num_draft_tokens_decoded))
    assert decoded[0] == decoded[2]
    assert decoded[1] < decoded[0]
    assert decoded[1][1] < decoded[0][1]
