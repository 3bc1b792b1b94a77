"""What cannot be applied exactly under speculation yet decodes plainly, says so once, and is never ignored."""

from __future__ import annotations

import itertools
import warnings
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np
import pytest
from responses import PROMPT, Pair, assert_same, comparable, complete

import specllama

if TYPE_CHECKING:
    from conftest import MakeBase, MakeLlama, TinyFiles

GRAMMAR = 'root ::= ("cat" | "dog") " " root'


FALLBACKS: dict[str, dict[str, Any]] = {
    "mirostat 1": {"mirostat_mode": 1, "temperature": 0.8, "seed": 3},
    "mirostat 2": {"mirostat_mode": 2, "temperature": 0.8, "seed": 3},
    "mirostat 2 with a grammar": {"mirostat_mode": 2, "temperature": 0.8, "seed": 3, "grammar": "GRAMMAR"},
}


def fallback_settings(name: str) -> dict[str, Any]:
    settings = {"max_tokens": 15, **FALLBACKS[name]}
    if "grammar" in settings:
        settings["grammar"] = llama_cpp.LlamaGrammar.from_string(GRAMMAR, verbose=False)
    return settings


@pytest.mark.parametrize("name", FALLBACKS)
def test_what_cannot_be_exact_yet_decodes_plainly_and_says_so_once(pair: Pair, name: str) -> None:
    llm, base = pair
    theirs = comparable(base.create_completion(PROMPT, **fallback_settings(name)))
    with pytest.warns(specllama.FallbackWarning, match="mirostat"):
        ours = comparable(llm.create_completion(PROMPT, **fallback_settings(name)))
    assert_same(ours, theirs)
    assert llm.stats.num_drafts == 0
    assert llm.stats.num_draft_tokens_decoded == 0
    assert name.split()[0] in (llm.stats.fallback_reason or "")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        llm.create_completion(PROMPT, **fallback_settings(name))  # not a second time
    complete(pair)
    assert llm.stats.fallback_reason is None
    assert llm.stats.num_drafts > 0


def test_a_grammar_is_never_ignored(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good)
    with pytest.warns(specllama.FallbackWarning):
        response = llm.create_completion(PROMPT, **fallback_settings("mirostat 2 with a grammar"))
    text = response["choices"][0]["text"]
    assert set(text.split()) <= {"cat", "dog", "c", "ca", "d", "do"}


@pytest.mark.parametrize("name", ["mirostat 1", "mirostat 2"])
def test_processor_and_bias_are_applied_by_llama_cpps_sampler_too(
    make_llama: MakeLlama, tiny_files: TinyFiles, name: str
) -> None:
    llm = make_llama(draft=tiny_files.good)
    ban = llama_cpp.LogitsProcessorList([lambda ids, scores: np.where(np.arange(len(scores)) == 290, -np.inf, scores)])
    bias = {280: float("-inf"), 290: 50.0}
    with pytest.warns(specllama.FallbackWarning):
        tokens = list(llm.generate_tokens(PROMPT, logits_processor=ban, logit_bias=bias, **fallback_settings(name)))
    assert not {280, 290} & {token.id for token in tokens}


def test_without_a_draft_nothing_warns(make_llama: MakeLlama, make_base: MakeBase) -> None:
    pair = (make_llama(), make_base())
    complete(pair)
    for name in FALLBACKS:
        complete(pair, **fallback_settings(name))
        assert pair[0].stats.num_tokens > 0


def test_what_a_processor_raises_reaches_the_caller(make_llama: MakeLlama) -> None:
    """Through llama.cpp's sampler too, which is called by ctypes. The text so far is there, and so is the Llama."""
    llm = make_llama(seed=3)
    prompt = llm.tokenize(PROMPT.encode())
    expected = list(itertools.islice(llm.generate(prompt, mirostat_mode=2), 15))
    calls = 0

    def impatient(ids: Any, scores: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 4:
            scores[:] = -np.inf
            raise KeyboardInterrupt
        return scores

    processors = llama_cpp.LogitsProcessorList([impatient])
    seen: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        seen.extend(llm.generate(prompt, mirostat_mode=2, logits_processor=processors))
    assert seen == expected[:3]
    assert list(llm.eval_tokens) == [*prompt, *seen[:-1]]
    assert list(itertools.islice(llm.generate(prompt, mirostat_mode=2), 15)) == expected


def test_a_processor_that_raises_beside_a_grammar(make_llama: MakeLlama) -> None:
    def broken(ids: Any, scores: Any) -> Any:
        scores[:] = -np.inf
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        make_llama().create_completion(
            PROMPT,
            logits_processor=llama_cpp.LogitsProcessorList([broken]),
            **fallback_settings("mirostat 2 with a grammar"),
        )


NO_SCORES = llama_cpp.LogitsProcessorList([lambda ids, scores: np.full_like(scores, -np.inf)])
ONLY_ONE = {"type": "json_object", "schema": {"enum": [1]}}


@pytest.mark.parametrize("mode", [1, 2])
def test_no_token_is_left(make_llama: MakeLlama, mode: int) -> None:
    """llama.cpp's sampler would take one of them all the same, and its grammar would then end the process."""
    llm = make_llama()
    settings: dict[str, Any] = {"mirostat_mode": mode, "temperature": 0.8, "seed": 3, "max_tokens": 20}
    no_end = {llm.token_eos(): float("-inf")}
    grammar = llama_cpp.LlamaGrammar.from_string('root ::= "c"', verbose=False)
    messages: Any = [{"role": "user", "content": "a"}]
    for call in (
        lambda: llm.create_completion(PROMPT, grammar=grammar, logit_bias=no_end, **settings),
        lambda: llm.create_completion(PROMPT, grammar=grammar, logits_processor=NO_SCORES, **settings),
        lambda: llm.create_completion(PROMPT, logits_processor=NO_SCORES, **settings),
        lambda: llm.create_chat_completion(messages, response_format=ONLY_ONE, logit_bias=no_end, **settings),
    ):
        with pytest.raises(RuntimeError, match="no token can be sampled"):
            call()
    assert llm.create_completion(PROMPT, grammar=grammar, **settings)["choices"][0]["text"] == "c"


@pytest.mark.parametrize("temp", [0.0, 0.8])
def test_no_token_is_left_for_sample(make_llama: MakeLlama, temp: float) -> None:
    llm = make_llama()
    llm.eval(llm.tokenize(PROMPT.encode()))
    grammar = llama_cpp.LlamaGrammar.from_string('root ::= "c"', verbose=False)
    for options in ({"grammar": grammar}, {}):
        with pytest.raises(RuntimeError, match="no token can be sampled"):
            llm.sample(temp=temp, logits_processor=NO_SCORES, **options)
    assert llm.detokenize([llm.sample(temp=temp, grammar=grammar)]) == b"c"


@pytest.mark.parametrize("given", [None, [1.0, 2.0], 3.0])
@pytest.mark.parametrize("bias", [{}, {280: 1.0}])
def test_a_processor_that_returns_no_scores(make_llama: MakeLlama, given: Any, bias: dict[int, float]) -> None:
    processors = llama_cpp.LogitsProcessorList([lambda ids, scores: given])
    with pytest.raises(ValueError, match=r"the logits processor returned a (NoneType|list|float) that is no array of"):
        make_llama().create_completion(
            PROMPT, logits_processor=processors, logit_bias=bias, **fallback_settings("mirostat 2")
        )


def test_processors_follow_one_another_and_may_return_whole_numbers(make_llama: MakeLlama) -> None:
    seen = []

    def whole(ids: Any, scores: Any) -> Any:
        return np.where(np.arange(len(scores)) < 290, 0, -(10**9))

    def look(ids: Any, scores: Any) -> Any:
        seen.append((scores.dtype, float(scores[290])))
        return scores

    llm = make_llama()
    processors = llama_cpp.LogitsProcessorList([whole, look])
    settings = {**fallback_settings("mirostat 2"), "logit_bias": {280: -1e9}}
    tokens = list(llm.generate_tokens(PROMPT, logits_processor=processors, **settings))
    assert {token.id for token in tokens} <= set(range(290)) - {280}
    assert set(seen) == {(np.dtype(np.single), -1e9)}
