"""The native loop without `specllama.Llama`: caches in step after every round, and nothing decoded twice."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from engine import Engine, drafters_of

from specllama import _core

if TYPE_CHECKING:
    from conftest import TinyFiles

PROMPT = [1, 270, 280, 290, 265, 300, 270, 280]
DRAFTS = ["identical", "good", "bad", "adversarial"]
RULES = ["rejection", "block", "coupled"]
MakeEngine = Callable[..., Engine]


@pytest.fixture
def make_engine(tiny_files: TinyFiles) -> Iterator[MakeEngine]:
    opened: list[Engine] = []

    def make(draft: str = "none", **kwargs: Any) -> Engine:
        engine = Engine(tiny_files.target, tiny_files.draft(draft), **kwargs)
        opened.append(engine)
        return engine

    yield make
    for engine in opened:
        engine.close()


def assert_in_step(engine: Engine) -> None:
    """Design section 4: target KV = history without pending; draft KV = a prefix of history."""
    history = engine.history()
    assert engine.target.tokens().tolist() == history[:-1]
    if engine.draft is not None:
        cached = engine.draft.tokens().tolist()
        assert cached == history[: len(cached)]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("draft", DRAFTS)
def test_caches_are_in_step_after_every_round(make_engine: MakeEngine, draft: str, rule: str) -> None:
    engine = make_engine(draft)
    engine.begin(PROMPT, rule=rule, gamma=5)
    emitted = list(PROMPT)
    for _ in range(30):
        tokens = engine.step()
        log = engine.rounds[-1]
        emitted += tokens
        assert len(tokens) == log.num_accepted + 1
        assert 0 <= log.num_accepted <= log.num_drafted <= 5
        assert engine.history() == emitted
        assert_in_step(engine)


@pytest.mark.parametrize("gamma", [1, 3, 8])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("draft", DRAFTS)
def test_no_accepted_token_is_decoded_twice(make_engine: MakeEngine, draft: str, rule: str, gamma: int) -> None:
    """Each model decodes what stays in its cache once, and besides only what was rejected."""
    engine = make_engine(draft)
    engine.generate(PROMPT, 80, rule=rule, gamma=gamma)
    counters = engine.speculator.counters
    rejected = sum(r.num_drafted - r.num_accepted for r in engine.rounds)
    assert counters.num_target_tokens_decoded == engine.target.num_tokens + rejected
    assert engine.draft is not None
    # The last drafted token of a round is never decoded by the draft; those before it are.
    decoded = [(r.num_drafted - 1, min(r.num_accepted, r.num_drafted - 1)) for r in engine.rounds if r.num_drafted]
    rejected_by_draft = sum(drafted - kept for drafted, kept in decoded)
    assert counters.num_draft_tokens_decoded == engine.draft.num_tokens + rejected_by_draft
    assert counters.num_accepted_tokens == sum(r.num_accepted for r in engine.rounds)
    assert counters.num_draft_tokens == sum(r.num_drafted for r in engine.rounds)
    assert counters.num_drafts == sum(r.num_drafted > 0 for r in engine.rounds)


def test_counters_of_positions(make_engine: MakeEngine) -> None:
    engine = make_engine("good")
    engine.generate(PROMPT, 120, gamma=4)
    counters = engine.speculator.counters
    per_pos = [sum(r.num_accepted > i for r in engine.rounds) for i in range(4)]
    assert counters.num_accepted_tokens_per_pos == per_pos
    assert counters.num_accepted_tokens == sum(per_pos)
    assert 0 < per_pos[3] < per_pos[0]
    reached = sum(min(r.num_accepted + 1, r.num_drafted) for r in engine.rounds)
    assert counters.num_reached_tokens == reached
    assert 0 < counters.sum_argmax_match < reached
    assert 0 < counters.sum_overlap < reached


@pytest.mark.parametrize(
    "penalties",
    [
        {},
        {"repeat_penalty": 1.5, "frequency_penalty": 0.5, "penalty_last_n": 9},
        {"dry_multiplier": 2.0, "dry_allowed_length": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("rule", RULES)
def test_an_identical_draft_is_always_accepted(make_engine: MakeEngine, rule: str, penalties: dict[str, Any]) -> None:
    """p and q go through the same chain, with the history that each position really has."""
    engine = make_engine("identical")
    engine.generate(PROMPT, 100, rule=rule, gamma=4, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, **penalties)
    drafted = sum(r.num_drafted for r in engine.rounds)
    accepted = sum(r.num_accepted for r in engine.rounds)
    assert accepted >= drafted - 1  # batches of 1 and 5 may round differently
    assert engine.speculator.counters.sum_overlap == pytest.approx(
        engine.speculator.counters.num_reached_tokens, rel=1e-4
    )


@pytest.mark.parametrize("rule", RULES)
def test_max_tokens_bounds_every_round(make_engine: MakeEngine, rule: str) -> None:
    engine = make_engine("identical")
    engine.begin(PROMPT, rule=rule, gamma=6)
    for limit in (1, 2, 3, 1, 5):
        assert 1 <= len(engine.step(limit)) <= limit
        assert_in_step(engine)
    with pytest.raises(ValueError, match="max_tokens=0"):
        engine.step(0)


@pytest.mark.parametrize("rule", RULES)
def test_finish_keeps_a_prefix_and_the_next_generation_reuses_it(make_engine: MakeEngine, rule: str) -> None:
    engine = make_engine("good")
    tokens = engine.generate(PROMPT, 20, rule=rule)
    count = len(PROMPT) + 7
    engine.speculator.finish(count)
    assert engine.target.tokens().tolist() == (PROMPT + tokens)[:count]
    longer = (PROMPT + tokens)[:count] + [270]
    again = engine.generate(longer, 20, rule=rule)
    assert engine.speculator.counters.num_prompt_tokens_reused == count
    assert again == make_engine("good").generate(longer, 20, rule=rule)


def test_the_same_prompt_twice_decodes_no_prompt_token_twice(make_engine: MakeEngine) -> None:
    engine = make_engine("good")
    first = engine.generate(PROMPT, 20)
    engine.speculator.finish(len(PROMPT))
    second = engine.generate(PROMPT, 20)
    counters = engine.speculator.counters
    assert second == first
    # The last prompt token is decoded in the first round: its logits are needed.
    assert counters.num_prompt_tokens_reused == len(PROMPT) - 1
    rejected = sum(r.num_drafted - r.num_accepted for r in engine.rounds)
    assert counters.num_target_tokens_decoded == 1 + (engine.target.num_tokens - len(PROMPT)) + rejected


def test_extend_and_rewind(make_engine: MakeEngine) -> None:
    engine = make_engine("good")
    engine.begin(PROMPT, temperature=0.0)
    tokens = engine.take(9)
    engine.speculator.rewind(len(PROMPT) + 4)
    engine.speculator.extend([281, 282])
    rest = engine.take(10)
    fresh = make_engine("good")
    assert rest == fresh.generate([*PROMPT, *tokens[:4], 281, 282], 10, temperature=0.0)
    with pytest.raises(ValueError, match="rewind"):
        engine.speculator.rewind(len(PROMPT) - 1)
    with pytest.raises(ValueError, match="out of range"):
        engine.speculator.extend([10**6])


def test_logits_are_the_targets_own_after_bias_and_penalties(make_engine: MakeEngine) -> None:
    """Bias and penalties are applied in llama.cpp's buffer, and taken back."""
    engine = make_engine("good")
    dry = {"dry_multiplier": 2.0, "dry_allowed_length": 0}
    settings: dict[str, Any] = {"temperature": 0.0, "repeat_penalty": 1.5, "frequency_penalty": 0.5, **dry}
    engine.begin(PROMPT, gamma=4, **settings)
    for _ in range(5):
        tokens = engine.step()
        rows = [np.asarray(engine.speculator.logits(i)) for i in range(len(tokens))]
        history = engine.history()
        base = engine_logits(make_engine, history, len(tokens))
        for row, expected in zip(rows, base, strict=True):
            assert row == pytest.approx(expected, abs=1e-4)


def engine_logits(make_engine: MakeEngine, history: list[int], count: int) -> list[Any]:
    """Logits at the `count` positions before the last token, by plain decoding."""
    plain = make_engine()
    rows = []
    for i in range(count):
        plain.begin(history[: len(history) - count + i], gamma=0)
        plain.speculator.decode_pending()
        rows.append(np.asarray(plain.speculator.logits(0)))
    return rows


@pytest.mark.parametrize("rule", RULES)
def test_the_target_emits_a_token_that_the_draft_does_not_have(tiny_files: TinyFiles, rule: str) -> None:
    """A padding row of the longer vocabulary: the draft cannot decode it, so the target goes on alone."""
    engine = Engine(tiny_files.padded, tiny_files.good)
    row = engine.target.decoder.n_vocab - 1
    assert engine.draft is not None and engine.draft.decoder.n_vocab <= row
    settings: dict[str, Any] = {"temperature": 1.0, "seed": 2, "logit_bias": {row: 14.0}}
    tokens = engine.generate(PROMPT, 60, rule=rule, **settings)
    assert row in tokens
    assert engine.speculator.drafting_stopped
    if rule == "coupled":
        assert tokens == engine.generate(PROMPT, 60, rule=rule, gamma=0, **settings)
    engine.generate(PROMPT, 20, rule=rule)
    assert not engine.speculator.drafting_stopped
    engine.close()


def test_calls_in_the_wrong_order_are_refused(make_engine: MakeEngine) -> None:
    engine = make_engine("good")
    for call in (engine.speculator.prefill, lambda: engine.speculator.step(1), engine.speculator.decode_pending):
        with pytest.raises(ValueError, match="begin"):
            call()
    with pytest.raises(ValueError, match="logits"):
        engine.speculator.logits(0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rule": "nonsense"}, "nonsense"),
        ({"prompt": []}, "empty"),
        ({"prompt": [1] * 600}, "600.*n_ctx=512"),
        ({"prompt": [1, -1]}, "-1.*index 1"),
        ({"prompt": [1, 2, 10**6]}, "1000000.*index 2"),
    ],
)
def test_bad_beginnings(make_engine: MakeEngine, settings: dict[str, Any], message: str) -> None:
    engine = make_engine("good")
    values: dict[str, Any] = {"prompt": PROMPT, "rule": "block", **settings}
    with pytest.raises(ValueError, match=message):
        engine.speculator.begin(
            values["prompt"], sampler=_core.SamplerParams(), rule=values["rule"], num_draft_tokens=4, seed=1
        )
    assert len(engine.generate(PROMPT, 5)) == 5


def test_two_loops_over_one_pair_are_refused_or_take_turns(make_engine: MakeEngine) -> None:
    """A call in a second thread is refused while one runs; between calls each loop brings the caches back in step."""
    engine = make_engine("good")
    prompts = [PROMPT, [1, 290, 291]]
    expected = [make_engine("good").generate(prompt, 60) for prompt in prompts]
    refused = 0

    def patiently(call: Callable[[], Any]) -> Any:
        nonlocal refused
        while True:
            try:
                return call()
            except _core.BusyError:
                refused += 1

    def run(prompt: list[int], result: list[int]) -> None:
        loop = _core.Speculator(engine.target, drafters_of(engine.draft))
        settings: dict[str, Any] = {"rule": "block", "num_draft_tokens": 4, "seed": 1}
        patiently(lambda: loop.begin(prompt, sampler=_core.SamplerParams(), **settings))
        while len(result) < 60:
            result += patiently(functools.partial(loop.step, 60 - len(result))).tokens

    for _ in range(50):
        results: list[list[int]] = [[], []]
        threads = [threading.Thread(target=run, args=pair) for pair in zip(prompts, results, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == expected
        if refused:
            return
    pytest.fail("in 50 attempts the two threads never met")
