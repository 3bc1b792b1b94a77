"""The samplers that llama_cpp.Llama's methods do not know: every way to ask for them, and what they must not do."""

from __future__ import annotations

import inspect
import itertools
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np
import pytest
from needed import imported
from responses import PROMPT, joined

import specllama
from specllama import _core
from specllama.engine.samplers import DEFAULTS, SAMPLERS

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

SETTINGS: dict[str, dict[str, Any]] = {
    "DRY": {"dry_multiplier": 3.0, "dry_allowed_length": 0, "dry_base": 1.2, "dry_sequence_breakers": ["."]},
    "XTC": {"xtc_probability": 0.9, "xtc_threshold": 0.05},
    "top-n-sigma": {"top_n_sigma": 0.3},
    "dynamic temperature": {"dynatemp_range": 0.75, "dynatemp_exponent": 0.2},
}
CALL: dict[str, Any] = {"max_tokens": 30, "temperature": 0.8, "seed": 3}
MESSAGES: Any = [{"role": "user", "content": "the cat sat"}]


@pytest.fixture
def drafted(make_llama: MakeLlama, tiny_files: TinyFiles) -> specllama.Llama:
    return make_llama(draft=tiny_files.good)


def text(llm: specllama.Llama, **settings: Any) -> str:
    return str(llm.create_completion(PROMPT, **{**CALL, **settings})["choices"][0]["text"])


def test_each_seed_has_its_text(drafted: specllama.Llama) -> None:
    texts = [text(drafted, seed=seed, temperature=1.3) for seed in (1, 2, 3, 1, 2, 3)]
    assert texts[:3] == texts[3:]
    assert len({*texts}) == 3


@pytest.mark.parametrize("name", SETTINGS)
def test_every_method_takes_them(drafted: specllama.Llama, name: str) -> None:
    llm, settings = drafted, SETTINGS[name]
    expected = text(llm, **settings)
    assert llm.stats.num_drafts > 0
    assert text(llm) != expected, "it does something, and is gone with the next call"
    assert llm(PROMPT, **CALL, **settings)["choices"][0]["text"] == expected
    assert joined(list(llm.create_completion(PROMPT, stream=True, **CALL, **settings))) == expected
    tokens = list(llm.generate_tokens(PROMPT, **CALL, **settings))
    assert "".join(token.text for token in tokens) == expected
    assert text(llm, num_draft_tokens=0, **settings) == expected
    assert llm.stats.num_drafts == 0

    chat = [
        llm.create_chat_completion(MESSAGES, **CALL, **settings)["choices"][0]["message"]["content"],
        "".join(token.text for token in specllama.Conversation(llm, **CALL, **settings).say("the cat sat")),
        "".join(token.text for token in specllama.Conversation(llm, **CALL).say("the cat sat", **settings)),
        "".join(
            chunk["choices"][0]["delta"].get("content") or ""
            for chunk in llm.create_chat_completion(MESSAGES, stream=True, **CALL, **settings)
        ),
    ]
    assert set(chat) == {chat[0]}
    assert llm.create_chat_completion(MESSAGES, **CALL)["choices"][0]["message"]["content"] != chat[0]


def test_openais_form_takes_them(drafted: specllama.Llama) -> None:
    imported("openai")
    settings = {**CALL, **SETTINGS["XTC"]}
    expected = drafted.create_chat_completion(MESSAGES, **settings)["choices"][0]["message"]["content"]
    found = drafted.create_chat_completion_openai_v1(MESSAGES, **settings)  # type: ignore[no-untyped-call]
    assert found.choices[0].message.content == expected


@pytest.mark.parametrize("name", SETTINGS)
def test_generate_takes_them(drafted: specllama.Llama, name: str) -> None:
    llm = drafted
    prompt = llm.tokenize(PROMPT.encode())

    def first(**settings: Any) -> list[int]:
        llm.set_seed(4)
        return list(itertools.islice(llm.generate(prompt, **settings), 30))

    assert first(**SETTINGS[name]) == first(num_draft_tokens=0, **SETTINGS[name])
    assert first(**SETTINGS[name]) != first()


def test_they_are_part_of_the_signatures() -> None:
    llm = specllama.Llama
    for method in (llm.generate, llm.create_completion, llm.__call__, llm.create_chat_completion):
        parameters = inspect.signature(method).parameters
        for name, default in DEFAULTS.items():
            assert parameters[name].default == default


def test_other_names_are_still_refused(drafted: specllama.Llama) -> None:
    with pytest.raises(TypeError, match="dry_multipler"):
        drafted.create_completion(PROMPT, dry_multipler=0.8)
    with pytest.raises(TypeError, match="dry_multipler"):
        drafted.generate_tokens(PROMPT, dry_multipler=0.8)


def test_greedy_text_knows_dry_alone(drafted: specllama.Llama) -> None:
    """At temperature 0 nothing is truncated and nothing tempered, as in the base class."""
    greedy = text(drafted, temperature=0.0)
    for name, settings in SETTINGS.items():
        assert (text(drafted, temperature=0.0, **settings) == greedy) == (name != "DRY"), name


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"dry_multiplier": -1.0}, ValueError, "dry_multiplier=-1 .*0"),
        ({"dry_multiplier": 1.0, "dry_base": 0.5}, ValueError, "dry_base=0.5 .*at least 1"),
        ({"dry_penalty_last_n": -2}, ValueError, "dry_penalty_last_n=-2 .*-1"),
        ({"dry_multiplier": 1.0, "dry_sequence_breakers": "\n"}, TypeError, "dry_sequence_breakers=.*list"),
        ({"dry_multiplier": 1.0, "dry_sequence_breakers": None}, TypeError, "dry_sequence_breakers=.*list"),
        ({"dry_multiplier": 1.0, "dry_sequence_breakers": [3]}, TypeError, "dry_sequence_breakers=.*list"),
        ({"dry_multiplier": 1.0, "dry_sequence_breakers": ["x" * 41]}, ValueError, "41 bytes.*40"),
        ({"xtc_probability": 2.0}, ValueError, "xtc_probability=2 .*from 0"),
        ({"xtc_threshold": float("nan")}, ValueError, "xtc_threshold=nan .*from 0 to 1"),
        ({"top_n_sigma": float("inf")}, ValueError, "top_n_sigma=inf .*finite"),
        ({"dynatemp_exponent": -1.0}, ValueError, "dynatemp_exponent=-1 .*0 or more"),
        ({"mirostat_mode": 2, "dry_multiplier": 0.8}, ValueError, "mirostat_mode=2 and dry_multiplier.*switch one"),
        ({"mirostat_mode": 1, "dynatemp_range": 0.8}, ValueError, "mirostat_mode=1 and dynatemp_range.*switch one"),
        ({"dry_multiplier": None}, TypeError, "dry_multiplier=None must be a number"),
        ({"dry_allowed_length": 1.5}, TypeError, "dry_allowed_length=1.5 must be a whole number"),
        ({"top_n_sigma": "1"}, TypeError, "top_n_sigma='1' must be a number"),
        ({"dry_penalty_last_n": 1 << 40}, ValueError, "is out of range: it must be from -1 to 2147483647"),
    ],
)
def test_bad_values(drafted: specllama.Llama, settings: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        text(drafted, **settings)
    assert text(drafted)


def test_log_probabilities_are_the_models_own(drafted: specllama.Llama) -> None:
    """As llama_cpp has them: before any sampler."""
    settings = {"temperature": 0.0, "logprobs": 3, "dry_multiplier": 2.0, "dry_allowed_length": 0}
    response = drafted.create_completion(PROMPT, max_tokens=12, **settings)
    assert drafted.stats.num_accepted_tokens > 0
    tokens = [token.id for token in drafted.generate_tokens(PROMPT, max_tokens=12, **settings)]
    prompt = drafted.tokenize(PROMPT.encode())
    drafted.reset()
    rows = dict(drafted.engine.score([*prompt, *tokens]))
    for i, token in enumerate(tokens):
        row = rows[len(prompt) - 1 + i]
        expected = float(row[token] - np.logaddexp.reduce(row.astype(np.float64)))
        assert response["choices"][0]["logprobs"]["token_logprobs"][i] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("name", SETTINGS)
def test_beside_a_grammar_and_a_processor(drafted: specllama.Llama, name: str) -> None:
    """All of them in one chain; the text is plain decoding's."""
    guide = llama_cpp.LlamaGrammar.from_string('root ::= (" the" | " cat" | " dog" | " on" | ".")+', verbose=False)
    ban = llama_cpp.LogitsProcessorList([lambda ids, scores: np.where(np.arange(len(scores)) == 290, -np.inf, scores)])
    for extra in ({"grammar": guide}, {"logits_processor": ban}, {"grammar": guide, "logits_processor": ban}):
        for gamma in (1, 4, "auto"):
            settings = {**extra, **SETTINGS[name], "verify": "coupled"}
            assert text(drafted, num_draft_tokens=gamma, **settings) == text(drafted, num_draft_tokens=0, **settings)


def test_xtc_is_a_mixture_of_what_its_coin_decides() -> None:
    """By hand: p = (0.5, 0.3, 0.15, 0.05); all but the least of those that reach 0.1 are away half of the time."""
    p = np.array([0.5, 0.3, 0.15, 0.05])
    excluded = np.array([0.0, 0.0, 0.75, 0.25])
    for top_k in (0, 4):  # dense and sparse
        for probability in (0.0, 0.25, 0.5, 1.0):
            params = _core.SamplerParams(
                temperature=1.0, top_k=top_k, top_p=1.0, min_p=0.0, xtc_probability=probability, xtc_threshold=0.1
            )
            found = _core.distribution(np.log(p).astype(np.float32), params)
            probs = np.zeros(4)
            probs[found.ids] = found.probs
            assert probs == pytest.approx((1 - probability) * p + probability * excluded, abs=1e-6)


def test_names() -> None:
    """Those of llama-server's requests."""
    assert set(SAMPLERS) == {
        "dry_multiplier",
        "dry_base",
        "dry_allowed_length",
        "dry_penalty_last_n",
        "dry_sequence_breakers",
        "xtc_probability",
        "xtc_threshold",
        "top_n_sigma",
        "dynatemp_range",
        "dynatemp_exponent",
    }
