"""Guided generation with a draft: grammars, JSON and tools write what plain decoding does."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np
import pytest
import reference as ref
from engine import Engine
from responses import PROMPT, Pair, assert_same, comparable, stream
from test_constraint import GRAMMARS
from test_engine_statistics import LENGTH as SEQUENCE
from test_engine_statistics import LEVEL, VOCAB, Scorer, chi_square, core_settings, count_sequences
from test_engine_statistics import PROMPT as LETTERS

import specllama

if TYPE_CHECKING:
    from conftest import MakeBase, MakeLlama, TinyFiles

DRAFTS = ["identical", "good", "adversarial", "padded_draft"]
LENGTH = 40
SCHEMA = {
    "type": "object",
    "properties": {"animal": {"enum": ["cat", "dog", "fox"]}, "sat": {"type": "boolean"}, "on": {"enum": ["the", "a"]}},
    "required": ["animal", "sat", "on"],
    "additionalProperties": False,
}
PARTLY = {**SCHEMA, "not": {"required": ["name"]}}  # of which llguidance takes nothing, and llama_cpp all but "not"
SAMPLED: dict[str, dict[str, Any]] = {
    "default": {},
    "hot": {"temp": 1.3, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    "top-p": {"temp": 1.0, "top_k": 0, "top_p": 0.9, "min_p": 0.0},
    "penalties": {"temp": 1.0, "repeat_penalty": 1.3, "frequency_penalty": 0.3},
}


def guide(name: str) -> llama_cpp.LlamaGrammar:
    return llama_cpp.LlamaGrammar.from_string(GRAMMARS[name], verbose=False)


def guided_tokens(llm: llama_cpp.Llama, name: str, **settings: Any) -> list[int]:
    return list(itertools.islice(llm.generate(llm.tokenize(b"the cat"), grammar=guide(name), **settings), LENGTH))


# --- Equal to plain decoding ------------------------------------------------------------------------------------------


@pytest.mark.sampled(6)
@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("name", GRAMMARS)
def test_greedy(make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles, name: str, draft: str) -> None:
    expected = guided_tokens(make_base(), name, temp=0.0)
    llm = make_llama(draft=tiny_files.draft(draft))
    gammas: list[specllama.engine.options.NumDraftTokens] = [0, 1, 4, 8, "auto"]
    for gamma in gammas:
        for rule in ("block", "rejection", "coupled"):
            assert guided_tokens(llm, name, temp=0.0, num_draft_tokens=gamma, verify=rule) == expected
            assert llm.stats.fallback_reason is None
            assert gamma == "auto" or (llm.stats.num_drafts > 0) == (gamma > 0)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("chain", SAMPLED)
@pytest.mark.parametrize("name", GRAMMARS)
def test_coupled(make_llama: MakeLlama, tiny_files: TinyFiles, name: str, chain: str) -> None:
    plain = guided_tokens(make_llama(seed=5), name, verify="coupled", **SAMPLED[chain])
    for draft in [*DRAFTS, "lookup"]:
        llm = make_llama(draft="lookup" if draft == "lookup" else tiny_files.draft(draft), seed=5)
        for gamma in (0, 1, 4, "auto"):
            tokens = guided_tokens(llm, name, verify="coupled", num_draft_tokens=gamma, **SAMPLED[chain])
            assert tokens == plain, (draft, gamma)
            assert llm.stats.fallback_reason is None


def test_an_identical_draft_is_accepted_whole(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """p and q are masked alike, each behind the tokens that were drafted before it."""
    llm = make_llama(draft=tiny_files.identical)
    for name in GRAMMARS:
        for rule in ("rejection", "block", "coupled"):
            guided_tokens(llm, name, temp=1.0, verify=rule)
            assert llm.stats.acceptance_rate == 1.0


def test_a_bias_and_a_grammar(make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles) -> None:
    pair = (make_llama(draft=tiny_files.good), make_base())
    for bias in ({280: 5.0}, {290: float("-inf"), 3 + ord("."): 4.0}):
        settings = {"max_tokens": 20, "temperature": 0.0, "logit_bias": bias}
        ours, theirs = (comparable(llm.create_completion(PROMPT, grammar=guide("letters"), **settings)) for llm in pair)
        assert_same(ours, theirs)
    assert pair[0].stats.num_drafts > 0


# --- The distribution -------------------------------------------------------------------------------------------------

STEPS = 'root ::= ("a" [bc] | "c" [a-e] | "de")+'
"""Over the letters' vocabulary `<unk> <s> </s> a b c d e`, which are the tokens 0 to 7."""
EXPECTED = {"start": "acd", "a": "bc", "c": "abcde", "d": "e"}


def allowed_letters(generated: list[int]) -> list[int]:
    """What may come next, by the definition of STEPS. The end of a text changes nothing."""
    state, complete = "start", False
    for token in generated:
        if token == 2:
            continue
        state, complete = ("abcde"[token - 3], False) if state == "start" else ("start", True)
    return [3 + "abcde".index(letter) for letter in EXPECTED[state]] + [2] * complete


def guided_probabilities(scorer: Scorer, chain: ref.Chain) -> ref.Array:
    """The probability of every sequence of SEQUENCE tokens under STEPS."""
    result = np.zeros((VOCAB,) * SEQUENCE)

    def extend(prefix: list[int], probability: float) -> None:
        if len(prefix) == SEQUENCE:
            result[tuple(prefix)] = probability
            return
        logits = scorer.logits(prefix)[-1]
        allowed = allowed_letters(prefix)
        masked = np.full_like(logits, -np.inf)
        masked[allowed] = logits[allowed]
        probs = ref.sampler_chain(masked, chain, prefix).probs
        for token in allowed:
            extend([*prefix, token], probability * probs[token])

    extend([], 1.0)
    assert result.sum() == pytest.approx(1.0)
    return result


OFF = ref.Chain(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


@pytest.mark.statistics
@pytest.mark.sampled(3)
@pytest.mark.parametrize("chain", [OFF, ref.Chain(temperature=1.5, top_k=3, min_p=0.0)], ids=["T=1", "top-k 3"])
@pytest.mark.parametrize("draft", ["good", "bad", "adversarial"])
@pytest.mark.parametrize("rule", ["rejection", "block", "coupled"])
def test_sequences(tiny_files: TinyFiles, scorer: Scorer, rule: str, draft: str, chain: ref.Chain) -> None:
    engine = Engine(tiny_files.letters, tiny_files.letters_draft(draft))

    def generate(seed: int) -> list[int]:
        settings = core_settings(chain)
        return engine.generate(
            LETTERS, SEQUENCE, rule=rule, gamma=3, seed=seed, constraint=engine.grammar(STEPS), **settings
        )

    counts = count_sequences(generate, 1500)
    engine.close()
    assert chi_square(counts, guided_probabilities(scorer, chain)) > LEVEL


def test_plain_sampling_of_the_base_class_passes_the_same_test(tiny_files: TinyFiles, scorer: Scorer) -> None:
    llm = llama_cpp.Llama(str(tiny_files.letters), n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False)

    def generate(seed: int) -> list[int]:
        llm.set_seed(seed)
        grammar = llama_cpp.LlamaGrammar.from_string(STEPS, verbose=False)
        settings = {"temp": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        return list(itertools.islice(llm.generate(LETTERS, grammar=grammar, **settings), SEQUENCE))

    counts = count_sequences(generate, 1000)
    llm.close()
    assert chi_square(counts, guided_probabilities(scorer, OFF)) > LEVEL


# --- Tokens that the grammar forces -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["rejection", "block", "coupled"])
def test_a_forced_token_is_accepted_without_the_draft_model(tiny_files: TinyFiles, rule: str) -> None:
    engine = Engine(tiny_files.letters, tiny_files.letters_adversarial)
    constraint = engine.grammar('root ::= "abcde" [ab] root')
    engine.begin(LETTERS, rule=rule, gamma=4, constraint=constraint, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    text = engine.take(24)
    assert [token - 3 for i, token in enumerate(text) if i % 6 < 5] == [0, 1, 2, 3, 4] * 4
    forced = engine.speculator.counters.per_source["grammar"]
    assert forced.num_draft_tokens >= 12
    assert forced.num_accepted_tokens > 0
    # Whatever was not accepted stood behind a rejected draft of the model's.
    model = engine.speculator.counters.per_source["model"]
    assert model.num_draft_tokens < forced.num_draft_tokens
    if model.num_accepted_tokens == model.num_draft_tokens:
        assert forced.num_accepted_tokens == forced.num_draft_tokens
    engine.close()


@pytest.mark.parametrize("draft", ["good", "lookup"])
def test_forced_text_is_guessed_where_the_pace_decides(
    make_llama: MakeLlama, tiny_files: TinyFiles, draft: str
) -> None:
    llm = make_llama(
        draft="lookup" if draft == "lookup" else tiny_files.draft(draft), num_draft_tokens="auto", verify="coupled"
    )
    long = llama_cpp.LlamaGrammar.from_string('root ::= (" the cat sat on" (" a" | " the") " dog and")+', verbose=False)
    settings: dict[str, Any] = {"grammar": long, "max_tokens": 120, "temperature": 1.0, "seed": 3}
    plain = llm.create_completion("the", num_draft_tokens=0, **settings)["choices"][0]["text"]
    accepted = 0
    for _ in range(5):
        llm.engine.slot.loop.restore_costs([{1: 1.0, 17: 1.1}, {1: 1.0, 600: 900.0}])  # guesses pay, the model does not
        assert llm.create_completion("the", **settings)["choices"][0]["text"] == plain
        if "grammar" in llm.stats.per_drafter:
            accepted += llm.stats.per_drafter["grammar"].num_accepted_tokens
    assert accepted > 0


# --- Texts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draft", ["good", "adversarial", "lookup"])
@pytest.mark.parametrize("verify", ["rejection", "block", "coupled"])
def test_nothing_else_is_ever_written(
    make_llama: MakeLlama, tiny_files: TinyFiles, draft: Path | str, verify: str
) -> None:
    draft = draft if draft == "lookup" else tiny_files.draft(str(draft)) or ""
    llm = make_llama(draft=draft, verify=verify, num_draft_tokens="auto")
    texts: dict[str, Callable[[str], object]] = {
        "words": re.compile(r"(( the| cat| dog| on|\.|,)*)( |t|th| t| th| c| ca| d| do| o)?").fullmatch,
        "letters": re.compile(r"[a-e .]*").fullmatch,
        "not": lambda text: not set(text) & set('aeiou"'),
        "finite": {" the cat sat", " the dog"}.__contains__,
    }
    for name, fits in texts.items():
        for seed in range(4):
            text = llm.create_completion("the", grammar=guide(name), max_tokens=30, temperature=1.2, seed=seed)
            assert fits(text["choices"][0]["text"]), (name, text)
    assert llm.stats.fallback_reason is None


def test_the_text_ends_where_only_its_end_is_left(pair: Pair) -> None:
    for llm in pair:
        choice = llm.create_completion("the", grammar=guide("finite"), temperature=1.0, seed=1)["choices"][0]
        assert choice["finish_reason"] == "stop"
        assert choice["text"] in (" the cat sat", " the dog")
    assert pair[0].stats.num_drafts > 0


def test_characters_of_several_tokens(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good)
    for seed in range(5):
        text = llm.create_completion("the", grammar=guide("utf-8"), max_tokens=60, temperature=1.0, seed=seed)
        assert re.fullmatch(r"(é|ü|日本| a|[α-ω])*(日| )?", text["choices"][0]["text"])
        assert llm.stats.num_accepted_tokens > 0


@pytest.mark.parametrize("verify", ["rejection", "block", "coupled"])
def test_json_schema(make_llama: MakeLlama, tiny_files: TinyFiles, verify: str) -> None:
    llm = make_llama(draft=tiny_files.good, verify=verify)
    for seed in range(5):
        answer: Any = llm.create_chat_completion(
            [{"role": "user", "content": "the cat"}],
            response_format={"type": "json_object", "schema": SCHEMA},
            temperature=1.5,
            max_tokens=300,
            seed=seed,
        )
        assert answer["choices"][0]["finish_reason"] == "stop"
        value = json.loads(answer["choices"][0]["message"]["content"])
        assert value.keys() == SCHEMA["properties"].keys()  # type: ignore[attr-defined]
        assert value["animal"] in ("cat", "dog", "fox")
        assert isinstance(value["sat"], bool)
        assert llm.stats.num_accepted_tokens > 0
        assert llm.stats.fallback_reason is None


@pytest.mark.filterwarnings("ignore:the schema of .* cannot be enforced")
def test_chat_completions_are_those_of_the_base_class(pair: Pair) -> None:
    """Also where llguidance cannot enforce a schema, of which llama_cpp's grammar is used then."""
    messages = [{"role": "user", "content": "the cat sat"}]
    tool = {"type": "function", "function": {"name": "sit", "description": "sit", "parameters": PARTLY}}
    for settings in (
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_object", "schema": PARTLY}},
        {"tools": [tool], "tool_choice": {"type": "function", "function": {"name": "sit"}}},
    ):
        ours, theirs = (
            comparable(llm.create_chat_completion(messages, temperature=0.0, max_tokens=80, **settings)) for llm in pair
        )
        for answer in (ours, theirs):  # these carry the id of the call
            for call in answer["choices"][0]["message"].get("tool_calls", ()):
                assert call.pop("id")
        assert_same(ours, theirs)
        assert pair[0].stats.num_drafts > 0
        assert pair[0].stats.fallback_reason is None


# --- Interruptions and errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("verify", ["rejection", "block", "coupled"])
def test_what_ends_a_guided_text_leaves_nothing_behind(
    make_llama: MakeLlama, tiny_files: TinyFiles, verify: str
) -> None:
    llm = make_llama(draft=tiny_files.identical, num_draft_tokens=6, verify=verify)
    expected = guided_tokens(llm, "letters", temp=0.0)
    for settings in ({"max_tokens": 3}, {"max_tokens": 30, "stop": ["a"]}):
        llm.create_completion("the cat", grammar=guide("letters"), temperature=0.0, **settings)
        assert guided_tokens(llm, "letters", temp=0.0) == expected
    chunks = llm.create_completion("the cat", grammar=guide("words"), stream=True, max_tokens=30)
    assert not isinstance(chunks, dict)
    next(chunks)
    assert guided_tokens(llm, "letters", temp=0.0) == expected
    assert stream(llm, grammar=guide("letters")) == stream(llm, grammar=guide("letters"), num_draft_tokens=0)


@pytest.mark.parametrize("own", [[280], [3 + ord("z"), 3 + ord("Q")], [2]])
def test_send_goes_on_behind_the_callers_tokens(make_llama: MakeLlama, tiny_files: TinyFiles, own: list[int]) -> None:
    """A caller's token moves the grammar on where it fits, and is passed over by it where it does not."""
    texts = []
    for gamma in (0, 6):
        llm = make_llama(draft=tiny_files.identical)
        tokens = llm.generate(llm.tokenize(b"the"), temp=0.0, grammar=guide("letters"), num_draft_tokens=gamma)
        text = [next(tokens), next(tokens), tokens.send(own), *itertools.islice(tokens, 20)]
        tokens.close()
        texts.append(text)
        assert set(llm.detokenize(text).decode()) <= set("abcde .")
    assert texts[0] == texts[1]


def test_a_bad_grammar_is_refused_before_anything_is_decoded(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good)
    before = llm.create_completion(PROMPT, max_tokens=5, temperature=0.0)["choices"][0]["text"]
    bad = llama_cpp.LlamaGrammar.from_string("root ::= nothing", verbose=False)
    for settings in ({}, {"mirostat_mode": 2}):
        with pytest.raises(ValueError, match="names a rule 'nothing', which it does not define"):
            llm.create_completion(PROMPT, grammar=bad, **settings)
    with pytest.raises(TypeError, match=r"LlamaGrammar\.from_string"):
        llm.create_completion(PROMPT, grammar='root ::= "a"')
    with pytest.raises(ValueError, match="half of a surrogate pair"):
        llm.create_completion(PROMPT, grammar=llama_cpp.LlamaGrammar.from_string('root ::= "\ud800"', verbose=False))
    with pytest.raises(ValueError, match="null character"):
        llm.create_completion(PROMPT, grammar=llama_cpp.LlamaGrammar.from_string('root ::= "a"\0', verbose=False))
    assert llm.create_completion(PROMPT, max_tokens=5, temperature=0.0)["choices"][0]["text"] == before


def test_a_grammar_that_no_token_can_follow_is_an_error(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """The letters' vocabulary has no "z"; llama.cpp itself would end the process."""
    llm = make_llama(tiny_files.letters, tiny_files.letters_good)
    impossible = llama_cpp.LlamaGrammar.from_string('root ::= "abc" "z"', verbose=False)
    with pytest.raises(RuntimeError, match="no token can be sampled"):
        list(itertools.islice(llm.generate([1, 3, 4], grammar=impossible, temp=1.0), 5))
    assert list(itertools.islice(llm.generate([1, 3, 4], temp=0.0), 5))
