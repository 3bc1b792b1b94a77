"""generate_tokens: the tokens of a completion, one by one, where each came from and how likely it was."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from specllama import _core

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

    import specllama

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


REPETITIVE = "the cat sat on the dog and the cat sat on the fox and the cat sat on the"


def test_looked_up_tokens_say_so(tiny_files: TinyFiles, make_llama: MakeLlama) -> None:
    llm = make_llama(draft="lookup")
    count = collections.Counter(token.origin for token in llm.generate_tokens(REPETITIVE, max_tokens=100, seed=1))
    assert count["draft"] == 0
    assert count["lookup"] == llm.stats.num_accepted_tokens > 0


def test_both_ways_of_drafting_in_one_text(tiny_files: TinyFiles, make_llama: MakeLlama) -> None:
    """Greedy and biased to few tokens, the text repeats itself."""
    llm = make_llama(draft=tiny_files.identical, num_draft_tokens="auto", n_ctx=1024)
    bias = dict.fromkeys((270, 280, 290), 9.0)
    tokens = list(llm.generate_tokens(REPETITIVE, max_tokens=600, temperature=1.5, seed=1, logit_bias=bias))
    count = collections.Counter(token.origin for token in tokens)
    accepted = {name: drafter.num_accepted_tokens for name, drafter in llm.stats.per_drafter.items()}
    assert count["lookup"] == accepted.pop("lookup", 0)
    assert count["draft"] == sum(accepted.values())
    assert len(tokens) == 600


def test_what_a_function_drafted_is_a_draft(make_llama: MakeLlama) -> None:
    plain = [token.id for token in make_llama().generate_tokens(PROMPT, max_tokens=30, temperature=0.0)]
    prompt = make_llama().tokenize(PROMPT.encode())
    llm = make_llama(draft=lambda history: np.array(plain[len(history) - len(prompt) :][:3], np.intc))
    tokens = list(llm.generate_tokens(prompt, max_tokens=30, temperature=0.0))
    assert [token.id for token in tokens] == plain
    assert collections.Counter(token.origin for token in tokens)["draft"] == llm.stats.num_accepted_tokens > 15
    assert {token.acceptance_probability for token in tokens} == {1.0, None}


SAMPLING: dict[str, Any] = {
    "temperature": 1.2,
    "top_k": 12,
    "repeat_penalty": 1.1,
    "logit_bias": dict.fromkeys((265, 270, 280, 290), 6.0),
}


def probabilities(llm: specllama.Llama, tokens: list[int], num_prompt: int) -> list[float]:
    """Of each generated token, after the sampler chain."""
    params = _core.SamplerParams(**SAMPLING)
    result = []
    for position, logits in llm.engine.score(tokens):
        if position + 1 >= num_prompt:
            chain = _core.distribution(logits, params, tokens[num_prompt : position + 1])
            found = dict(zip(chain.ids.tolist(), chain.probs.tolist(), strict=True))
            result.append(found.get(tokens[position + 1], 0.0))
    return result


@pytest.mark.parametrize("draft", ["good", "bad", "lookup"])
@pytest.mark.parametrize("verify", ["rejection", "block", "coupled"])
def test_acceptance_probabilities(tiny_files: TinyFiles, make_llama: MakeLlama, draft: str, verify: str) -> None:
    llm = make_llama(draft=draft if draft == "lookup" else tiny_files.draft(draft), verify=verify)
    tokens = list(llm.generate_tokens(REPETITIVE, max_tokens=60, seed=4, **SAMPLING))
    prompt = llm.tokenize(REPETITIVE.encode())
    text = [*prompt, *(token.id for token in tokens)]
    p = probabilities(make_llama(), text, len(prompt))
    q = [1.0] * len(p) if draft == "lookup" else probabilities(make_llama(tiny_files.draft(draft)), text, len(prompt))
    drafted = 0
    for token, p_token, q_token in zip(tokens, p, q, strict=True):
        if token.origin in ("draft", "lookup"):
            assert token.acceptance_probability == pytest.approx(min(1.0, p_token / q_token), abs=5e-3)
            drafted += 1
        else:
            assert token.acceptance_probability is None
    assert drafted == llm.stats.num_accepted_tokens > 0


@pytest.mark.parametrize("stop", [[], ["a"]])
def test_logprobs_are_plain_decodings(tiny_files: TinyFiles, make_llama: MakeLlama, stop: list[str]) -> None:
    llm = make_llama(draft=tiny_files.good)
    settings = {"max_tokens": 60, "temperature": 1.0, "seed": 3, "stop": stop}
    tokens = list(llm.generate_tokens(PROMPT, logprobs=0, **settings))
    assert llm.stats.num_accepted_tokens > 0
    plain = list(make_llama().generate_tokens(PROMPT, logprobs=0, **settings))
    assert [token.id for token in tokens] == [token.id for token in plain]
    logprobs = [token.logprob for token in tokens]
    assert logprobs == pytest.approx([token.logprob for token in plain], abs=2e-3)
    completion = llm.create_completion(PROMPT, logprobs=0, **settings)["choices"][0]
    assert logprobs == pytest.approx(completion["logprobs"]["token_logprobs"], abs=2e-3)
    echoed = list(llm.generate_tokens(PROMPT, logprobs=0, echo=True, **settings))
    of_prompt = len(echoed) - len(tokens)
    assert {token.origin for token in echoed[:of_prompt]} == {"prompt"}
    assert "".join(token.text for token in echoed[:of_prompt]) == PROMPT
    scores = llm.create_completion(PROMPT, logprobs=0, echo=True, **settings)["choices"][0]["logprobs"]
    assert [token.logprob for token in echoed] == pytest.approx(scores["token_logprobs"], abs=2e-3)
    assert [token.logprob for token in echoed[of_prompt:]] == pytest.approx(logprobs, abs=2e-3)
    assert {token.logprob for token in llm.generate_tokens(PROMPT, **settings)} == {None}


def test_logprobs_are_computed_only_when_asked_for(
    tiny_files: TinyFiles, make_llama: MakeLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = make_llama(draft=tiny_files.good)
    messages: Any = [{"role": "user", "content": PROMPT}]

    def refused(*arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(_core, "logprobs", refused)
    ways: list[tuple[Callable[..., object], dict[str, Any]]] = [
        (lambda **options: list(llm.generate_tokens(PROMPT, **options)), {"logprobs": 0}),
        (lambda **options: llm.create_completion(PROMPT, **options), {"logprobs": 2}),
        (lambda **options: list(llm.create_completion(PROMPT, stream=True, **options)), {"logprobs": 0}),
        (lambda **options: llm.create_completion(PROMPT, echo=True, **options), {"logprobs": 0}),
        (lambda **options: llm.create_chat_completion(messages, **options), {"logprobs": True, "top_logprobs": 1}),
    ]
    for generate, asking in ways:
        assert generate(max_tokens=6)
        with pytest.raises(ZeroDivisionError):
            generate(max_tokens=6, **asking)


def test_what_llama_cpp_samples_is_plain(tiny_files: TinyFiles, make_llama: MakeLlama) -> None:
    """Behind a generation that drafted, and with log-probabilities."""
    llm = make_llama(draft=tiny_files.identical)
    list(llm.generate_tokens(PROMPT, max_tokens=20, temperature=0.0))
    with pytest.warns(UserWarning, match="mirostat"):
        tokens = list(llm.generate_tokens(PROMPT, max_tokens=9, mirostat_mode=2, logprobs=0))
    assert {(token.origin, token.acceptance_probability) for token in tokens} == {("plain", None)}
    assert all(token.logprob is not None and token.logprob < 0 for token in tokens)


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
