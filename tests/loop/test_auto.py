"""num_draft_tokens="auto", the default: whatever a round drafts, and from where, the text is that of the target.

Times on tiny models are noise, so what is drafted differs from run to run. That is meant: no choice may matter.
"""

from __future__ import annotations

import itertools
import json
import re
from typing import TYPE_CHECKING, Any

import llama_cpp
import pytest
from fresh import PROMPT, SAMPLING, text_of
from structs import costs_of
from test_decode_failures import aborting
from test_watch import Impatient

import specllama
from specllama.drop_in.view import call_on
from specllama.engine.listener import Stopped

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

REPEATING = "the cat sat on the dog and the cat sat on the"
MODELS = ["identical", "good", "bad", "adversarial"]
DRAFTS = [*MODELS, "lookup", "corpus"]
LENGTH = 60


def auto(make_llama: MakeLlama, tiny_files: TinyFiles, draft: str, **kwargs: Any) -> specllama.Llama:
    """A Llama under auto with the draft of that name."""
    kwargs = {"num_draft_tokens": "auto", **kwargs}
    if draft == "corpus":
        return make_llama(draft="lookup", lookup_corpus="a dog and the fox. the cat sat on the mat. " * 3, **kwargs)
    return make_llama(draft="lookup" if draft == "lookup" else tiny_files.draft(draft), **kwargs)


def tokens_of(llm: specllama.Llama, prompt: str = REPEATING, length: int = LENGTH, **settings: Any) -> list[int]:
    return list(itertools.islice(llm.generate(llm.tokenize(prompt.encode()), **settings), length))


def test_auto_is_the_default(tiny_files: TinyFiles) -> None:
    llm = specllama.Llama(str(tiny_files.target), n_ctx=64, verbose=False)
    assert llm.num_draft_tokens == "auto"
    llm.close()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("max_draft_tokens", [1, 3, 16])
@pytest.mark.parametrize("draft", DRAFTS)
def test_greedy_and_coupled_texts_are_those_of_plain_decoding(
    make_llama: MakeLlama, tiny_files: TinyFiles, draft: str, max_draft_tokens: int
) -> None:
    llm = auto(make_llama, tiny_files, draft, max_draft_tokens=max_draft_tokens)
    settings: list[dict[str, Any]] = [
        {"temp": 0.0},
        {"temp": 0.9},
        {"temp": 0.4},
        {"temp": 1.0, "repeat_penalty": 1.3, "frequency_penalty": 0.3},
    ]
    for seed, chain in itertools.product((1, 2, 3), settings):
        llm.set_seed(seed)
        plain = tokens_of(llm, num_draft_tokens=0, **chain)
        for _ in range(2):
            assert tokens_of(llm, **chain) == plain
            assert llm.stats.fallback_reason is None
            assert len(llm.stats.num_rounds_per_gamma) <= max_draft_tokens + 1
    assert llm.total_stats.num_drafts > 0


@pytest.mark.parametrize("draft", DRAFTS)
def test_auto_and_fixed_numbers_take_turns(make_llama: MakeLlama, tiny_files: TinyFiles, draft: str) -> None:
    llm = auto(make_llama, tiny_files, draft)
    llm.set_seed(4)
    plain = tokens_of(llm, num_draft_tokens=0, temp=0.5)
    for num_draft_tokens in ("auto", 4, "auto", 0, "auto", 9, 1, "auto"):
        llm.num_draft_tokens = num_draft_tokens  # type: ignore[assignment]
        assert tokens_of(llm, temp=0.5) == plain
        stats = llm.stats
        if num_draft_tokens == "auto":
            assert stats.plain_seconds > 0.0
            assert stats.predicted_speedup > 0.0
        else:
            assert (stats.plain_seconds, stats.predicted_speedup, stats.exploring_seconds) == (0.0, 0.0, 0.0)
            assert sum(stats.num_rounds_per_gamma[num_draft_tokens + 1 :]) == 0
    assert tokens_of(llm, num_draft_tokens="auto", temp=0.5) == plain


@pytest.mark.parametrize("verify", ["rejection", "block", "coupled"])
@pytest.mark.parametrize("draft", DRAFTS)
def test_statistics_add_up(make_llama: MakeLlama, tiny_files: TinyFiles, draft: str, verify: str) -> None:
    llm = auto(make_llama, tiny_files, draft, verify=verify)
    summed: dict[str, int] = {}
    for seed in range(6):
        text = llm.create_completion(REPEATING, max_tokens=LENGTH, temperature=0.6, seed=seed)
        stats = llm.stats
        rounds = sum(stats.num_rounds_per_gamma)
        assert stats.num_tokens == text["usage"]["completion_tokens"]
        if text["choices"][0]["finish_reason"] == "length":
            assert stats.num_accepted_tokens + rounds == stats.num_round_tokens
            assert stats.num_tokens == LENGTH
        assert stats.num_rounds_per_gamma[0] == rounds - stats.num_drafts
        assert sum(gamma * count for gamma, count in enumerate(stats.num_rounds_per_gamma)) == stats.num_draft_tokens
        assert stats.num_draft_tokens_per_pos == tuple(
            sum(stats.num_rounds_per_gamma[i + 1 :]) for i in range(len(stats.num_draft_tokens_per_pos))
        )
        drafters = stats.per_drafter.values()
        assert sum(drafter.num_draft_tokens for drafter in drafters) == stats.num_draft_tokens
        assert sum(drafter.num_accepted_tokens for drafter in drafters) == stats.num_accepted_tokens
        assert all(0 < drafter.num_drafts <= stats.num_drafts for drafter in drafters)
        assert set(stats.per_drafter) <= {"model", "lookup"}
        if draft not in MODELS:
            assert "model" not in stats.per_drafter
            assert stats.num_draft_tokens_decoded == 0
        assert 0.0 <= stats.exploring_seconds <= stats.draft_seconds + stats.verify_seconds
        spent = stats.draft_seconds + stats.verify_seconds + stats.rollback_seconds
        assert stats.realised_speedup == pytest.approx(
            (stats.num_accepted_tokens + rounds) * stats.plain_seconds / spent
        )
        for name, drafter in stats.per_drafter.items():
            summed[name] = summed.get(name, 0) + drafter.num_draft_tokens
    total = llm.total_stats
    assert {name: drafter.num_draft_tokens for name, drafter in total.per_drafter.items()} == summed
    assert json.loads(json.dumps(total.to_dict()))["per_drafter"].keys() == summed.keys()
    idle = total.num_idle_rounds
    assert {"measuring"} <= idle.keys() <= {"measuring", "no_match", "not_worth_it"}
    assert "no_match" not in idle or draft not in MODELS
    assert sum(idle.values()) <= total.num_rounds_per_gamma[0]
    assert f"{total.num_rounds_per_gamma[0]} of {sum(total.num_rounds_per_gamma)} rounds did not draft" in str(total)
    assert f"{idle['measuring']} to measure plain decoding" in str(total)
    why = re.search(r"(\d+) of \d+ rounds did not draft \((.*?)\)", str(total))
    assert why is not None
    assert sum(int(reason.split()[0]) for reason in why[2].split(", ") if reason[0].isdigit()) == int(why[1])


def test_a_generation_without_a_round_to_draft_in(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = auto(make_llama, tiny_files, "good")
    for max_tokens in (1, 2, 3):
        llm.create_completion(PROMPT, max_tokens=max_tokens, temperature=0.0)
        assert llm.stats.num_tokens == max_tokens
        assert str(llm.stats)
    llm.create_completion(PROMPT, max_tokens=1, temperature=0.0)
    assert llm.stats.plain_seconds == 0.0, "a round that could not draft is not a measurement"


def test_plain_decoding_teaches_what_it_costs(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """So do fixed numbers of draft tokens; the next text under auto need not find out."""
    llm = auto(make_llama, tiny_files, "good")
    tokens_of(llm, num_draft_tokens=0, temp=0.0)
    tokens_of(llm, num_draft_tokens=3, temp=0.0)
    target, draft = costs_of(llm.engine.slot.loop)
    assert {1, 4} <= target.keys()
    assert 1 in draft
    tokens_of(llm, temp=0.0, length=6)  # after eight rounds it may be measured again
    assert "measuring" not in llm.stats.num_idle_rounds


DEAR, CHEAP = {1: 0.5, 2: 0.51, 17: 0.52}, {1: 1e-7, 2: 1.1e-7, 17: 2e-7}
"""A target that a tiny draft is worth any prompt for, and one that it is worth none for."""


def test_a_prompt_that_would_cost_the_draft_too_much(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """It is left undecoded, but for two tokens that show whether it does; the text is the same."""
    expected = tokens_of(make_llama(num_draft_tokens=0), temp=0.0)
    for target_costs, skipped in ((CHEAP, True), (DEAR, False)):
        llm = auto(make_llama, tiny_files, "good")
        llm.engine.slot.loop.restore_costs([target_costs, {1: 0.001, 2: 0.001, 600: 0.002}])
        assert tokens_of(llm, temp=0.0, length=2) == expected[:2]
        decoded = llm.stats.num_draft_tokens_decoded
        assert decoded == 2 if skipped else decoded >= llm.stats.num_prompt_tokens - 1
        assert llm.stats.num_draft_prompts_skipped == int(skipped)
        assert ("the draft's prompt was skipped" in str(llm.stats)) == skipped
        assert tokens_of(llm, temp=0.0) == expected
        tokens_of(llm, num_draft_tokens=4, temp=0.0)
        assert llm.stats.num_draft_tokens_decoded > 2, "a fixed number of tokens is what it says"
    assert llm.total_stats.num_draft_prompts_skipped == 0


def test_the_first_token_waits_for_no_draft(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    expected = tokens_of(make_llama(num_draft_tokens=0), temp=0.0)
    for num_draft_tokens in (1, 4, "auto"):
        llm = make_llama(draft=tiny_files.good, num_draft_tokens=num_draft_tokens)
        assert tokens_of(llm, temp=0.0, length=1) == expected[:1]
        first = llm.stats
        assert (first.num_draft_tokens_decoded, first.num_drafts, first.num_first_tokens) == (0, 0, 1)
        assert first.num_target_tokens_decoded == first.num_prompt_tokens
        assert first.verify_seconds == 0 < first.prompt_seconds
        assert tokens_of(llm, temp=0.0) == expected
        assert llm.stats.num_first_tokens == 0, "of the prompt only the last token was left"


def test_a_draft_that_was_measured_in_a_busy_hour(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = auto(make_llama, tiny_files, "good")
    llm.engine.slot.loop.restore_costs([DEAR, {1: 60.0, 2: 61.0, 600: 1000.0}])
    tokens_of(llm, temp=0.0)
    assert llm.stats.num_draft_prompts_skipped == 0
    assert llm.engine.slot.loop.costs[1][1] < 30.0


def test_a_skipped_prompt_is_counted_without_a_round(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = auto(make_llama, tiny_files, "good")
    llm.engine.slot.loop.restore_costs([CHEAP, {1: 0.001, 2: 0.001, 600: 0.002}])
    with pytest.raises(Stopped):
        tokens_of(llm, call=call_on(llm, watch=Impatient(1)))
    assert llm.stats.num_draft_prompts_skipped == 1


# Interruptions


def expect_like_fresh(llm: specllama.Llama, make_llama: MakeLlama) -> None:
    """The next texts are those of a new object without a draft."""
    fresh = make_llama(num_draft_tokens=0)
    for prompt in (PROMPT, REPEATING, PROMPT + " no fox", "a dog"):
        assert text_of(llm, prompt) == text_of(fresh, prompt)
        assert llm.stats.fallback_reason is None


@pytest.mark.parametrize("draft", ["identical", "bad", "lookup"])
@pytest.mark.parametrize("after", [1, 6, 25])
def test_interruptions(make_llama: MakeLlama, tiny_files: TinyFiles, draft: str, after: int) -> None:
    llm = auto(make_llama, tiny_files, draft)
    whole = text_of(llm, REPEATING)
    tokens = llm.generate(llm.tokenize(REPEATING.encode()))
    for _ in range(after):
        next(tokens)
    tokens.close()
    assert llm.stats.num_tokens == after
    expect_like_fresh(llm, make_llama)

    stop = whole[after : after + 2]
    assert text_of(llm, REPEATING, stop=[stop]) == whole[: whole.index(stop)]
    expect_like_fresh(llm, make_llama)

    chunks = llm.create_completion(REPEATING, stream=True, **SAMPLING)
    for _ in range(min(after, 3)):
        next(chunks)
    del chunks
    expect_like_fresh(llm, make_llama)

    llm.reset()
    expect_like_fresh(llm, make_llama)


@pytest.mark.filterwarnings("ignore::specllama.FallbackWarning")
@pytest.mark.parametrize("draft", ["good", "lookup"])
@pytest.mark.parametrize("failing", ["target", "draft"])
def test_a_decode_that_fails(make_llama: MakeLlama, tiny_files: TinyFiles, draft: str, failing: str) -> None:
    llm = auto(make_llama, tiny_files, draft)
    tokens = llm.generate(llm.tokenize(REPEATING.encode()), temp=0.0)
    text = list(itertools.islice(tokens, 12))
    if failing == "target":
        with aborting(llm), pytest.raises(specllama.DecodeError, match="on the target"):
            list(tokens)
    elif draft != "lookup":
        with aborting(llm.draft_model):
            # It fails if it is used: under auto it may not be.
            text += itertools.islice(tokens, 20)
        tokens.close()
        assert llm.stats.fallback_reason is None or "on the draft" in llm.stats.fallback_reason
    assert text == tokens_of(make_llama(num_draft_tokens=0), length=len(text), temp=0.0)
    expect_like_fresh(llm, make_llama)


def test_drafts_are_exchanged(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = auto(make_llama, tiny_files, "good")
    expect_like_fresh(llm, make_llama)
    for draft in ("lookup", str(tiny_files.bad), None, lambda history: history[-3:], str(tiny_files.identical)):
        llm.draft_model = draft
        expect_like_fresh(llm, make_llama)
        tokens = llm.generate(llm.tokenize(b"a dog"))
        list(itertools.islice(tokens, 5))
    assert llm.num_draft_tokens == "auto"


# Limits


def test_a_draft_with_a_smaller_context(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """It holds the end of the text."""
    llm = auto(make_llama, tiny_files, "identical", draft_kwargs={"n_ctx": 256})
    settings: dict[str, Any] = {"max_tokens": 300, "temperature": 0.9, "seed": 5}
    expected = text_of(make_llama(num_draft_tokens=0), **settings)
    for _ in range(2):
        assert text_of(llm, **settings) == expected
        assert llm.stats.fallback_reason is None
    assert text_of(llm) == text_of(make_llama(num_draft_tokens=0))
    assert llm.stats.fallback_reason is None


@pytest.mark.parametrize("draft", ["identical", "lookup"])
def test_a_context_that_fills_up(make_llama: MakeLlama, tiny_files: TinyFiles, draft: str) -> None:
    llm = auto(make_llama, tiny_files, draft, n_ctx=256)
    plain = make_llama(n_ctx=256, num_draft_tokens=0)
    for prompt in (PROMPT, REPEATING * 10):
        expected = plain.create_completion(prompt, max_tokens=None, temperature=0.0)
        for _ in range(3):
            out = llm.create_completion(prompt, max_tokens=None, temperature=0.0)
            assert out["choices"] == expected["choices"]
            assert out["usage"]["total_tokens"] == 256
    tokens = llm.generate(llm.tokenize(PROMPT.encode()), temp=0.0)
    with pytest.raises(specllama.ContextFullError, match="n_ctx=256"):
        list(tokens)
    assert llm.stats.num_tokens + llm.stats.num_prompt_tokens == 257
    assert text_of(llm) == text_of(plain)


@pytest.mark.parametrize("draft", ["identical", "lookup"])
def test_small_batches(make_llama: MakeLlama, tiny_files: TinyFiles, draft: str) -> None:
    expected = tokens_of(make_llama(num_draft_tokens=0), REPEATING * 3, temp=0.0)
    for n_batch in (1, 2, 7):
        llm = auto(make_llama, tiny_files, draft, n_batch=n_batch)
        for _ in range(3):
            assert tokens_of(llm, REPEATING * 3, temp=0.0) == expected
        # An old llama.cpp rounds n_batch up.
        assert len(llm.total_stats.num_rounds_per_gamma) <= llama_cpp.llama_n_batch(llm.ctx)


def test_a_draft_that_decodes_fewer_tokens_at_once(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """What lookups have drafted it decodes in several batches."""
    llm = auto(make_llama, tiny_files, "identical", draft_kwargs={"n_batch": 2})
    expected = tokens_of(make_llama(num_draft_tokens=0), REPEATING * 3, temp=0.0)
    for _ in range(4):
        assert tokens_of(llm, REPEATING * 3, temp=0.0) == expected
        assert llm.stats.fallback_reason is None


@pytest.mark.parametrize("draft", ["good", "lookup"])
def test_texts_that_end(make_llama: MakeLlama, tiny_files: TinyFiles, draft: str) -> None:
    """With an end-of-text token in the prompt, in what is looked up, and soon in the text."""
    llm = auto(make_llama, tiny_files, draft)
    llm_eos = auto(make_llama, tiny_files, draft, max_draft_tokens=5)
    for each in (llm, llm_eos):
        each.draft_model = "lookup" if draft == "lookup" else str(tiny_files.eos_happy)
    eos = llm.token_eos()
    words = llm.tokenize(REPEATING.encode())
    prompt = [*words, eos, *words[1:], eos, *words[1:]]
    plain = make_llama(num_draft_tokens=0)
    for seed in range(6):
        settings: dict[str, Any] = {"max_tokens": 40, "temperature": 1.0, "seed": seed, "logit_bias": {eos: 6.0}}
        expected = plain.create_completion(prompt, **settings)
        for each in (llm, llm_eos):
            assert each.create_completion(prompt, **settings)["choices"] == expected["choices"]


@pytest.mark.filterwarnings("ignore:.*decoding plainly from here on")
def test_a_target_with_the_longer_vocabulary(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """Tokens that the draft does not have, in the prompt and looked up: it stops drafting, and the text stays."""
    llm = make_llama(tiny_files.padded, tiny_files.good, num_draft_tokens="auto")
    plain = make_llama(tiny_files.padded, num_draft_tokens=0)
    last = llm.n_vocab() - 1
    for prompt in ([1, 270, 280, 290, 270, 280], [1, 280, last, 290, 280, last, 290, 280]):
        for _ in range(3):
            expected = list(itertools.islice(plain.generate(prompt, temp=0.0), LENGTH))
            assert list(itertools.islice(llm.generate(prompt, temp=0.0), LENGTH)) == expected
