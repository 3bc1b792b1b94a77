"""specllama.verify on loops that are broken on purpose: it fails. Near-ties are told from failures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np
import pytest
import tiny_models as tiny

import specllama
from specllama import _core, verify
from specllama import _core_test as _test
from specllama.drop_in.lending import lent
from specllama.engine import Direct, Generation
from specllama.evidence.verify.report import to_text
from specllama.evidence.verify.rounding import SAFETY
from specllama.prompts import Prompt

if TYPE_CHECKING:
    from conftest import MakeBase, MakeLlama, TinyFiles

pytestmark = pytest.mark.long

PROMPTS = [
    Prompt("cat", "story", "the cat sat on the dog and", chat=False),
    Prompt("fox", "story", "a fox is in the", chat=False),
    Prompt("chat", "chat", "no dog, no fox"),
]
QUICK: dict[str, Any] = {"num_contexts": 1, "max_tokens": 32}


def problems_of(result: verify.VerifyResult) -> str:
    return "\n".join(result.problems)


# --- Drafts that lie about q -----------------------------------------------------------------------------------------


class ClaimingDrafter:
    """Claims q, the distribution of a draft model, for each token, whatever the token was drawn from."""

    def __init__(self, draft: llama_cpp.Llama, draw: Callable[[Any, _core.Distribution], _core.Distribution]) -> None:
        self.direct = Direct(lent(draft, "draft"), changes=lambda: None)
        self.draw = draw
        self.rng = np.random.default_rng(11)

    def __call__(self, history: Any, gamma: int) -> tuple[list[int], list[_core.Distribution]]:
        sequence, q = history.tolist(), []
        for _ in range(gamma):
            self.direct.prefill(sequence[:-1])
            logits = self.direct.decode(sequence[-1:])[0]
            q.append(_core.distribution(logits, _core.SamplerParams()))
            sequence.append(_test.sample(self.draw(logits, q[-1]), self.rng.random()))
        return sequence[len(history) :], q


def honest(logits: Any, q: _core.Distribution) -> _core.Distribution:
    return q


def greedy(logits: Any, q: _core.Distribution) -> _core.Distribution:
    return _core.distribution(logits, _core.SamplerParams(temperature=0.0))


def sharpened(logits: Any, q: _core.Distribution) -> _core.Distribution:
    return _core.Distribution(q.ids, q.probs**3 / (q.probs**3).sum())


@pytest.fixture
def drafted_by(
    make_llama: MakeLlama, tiny_files: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., specllama.Llama]:
    """A Llama with a draft, whose drafts come from a function in its place."""

    def make(drafter: Callable[[Any, int], tuple[list[int], list[_core.Distribution]]]) -> specllama.Llama:
        monkeypatch.setattr(
            "specllama.engine.drafts.draft.DrawingDraft.loop",
            lambda draft, target, **_: _core.Speculator(target, [_core.Drafter.function(drafter)]),
        )
        return make_llama(draft=tiny_files.good)

    return make


@pytest.mark.parametrize("lie", [honest, greedy, sharpened])
def test_a_drafter_that_lies_about_q_fails_the_sampling_tests(
    drafted_by: Callable[..., specllama.Llama],
    make_base: MakeBase,
    tiny_files: TinyFiles,
    lie: Callable[[Any, _core.Distribution], _core.Distribution],
) -> None:
    llm = drafted_by(ClaimingDrafter(make_base(tiny_files.good), lie))
    result = verify.run(llm, PROMPTS, num_contexts=2, max_tokens=32)
    assert not any(text.problems for text in result.texts)  # coupled and greedy take no notice of q
    failed = [bool(test.problems) for test in result.sampling]
    assert len(failed) == 4
    if lie is honest:
        assert result.passed, problems_of(result)
        return
    assert not result.passed
    assert all(failed), to_text(result)
    for test in result.sampling:
        assert test.p_value < test.level
        assert test.total_variation > test.chance_95
    assert "FAILED" in to_text(result).splitlines()[-1]
    assert "this is not how the target's distribution looks" in problems_of(result)


# --- Loops that go wrong behind the first two tokens ------------------------------------------------------------------


OPEN_CHAIN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


# Without a truncation that makes them impossible, a few wrong tokens among many take more texts to be seen.
@pytest.mark.parametrize(("wrong", "chain"), [("late", {}), ("bonus", {}), ("late draft", {}), ("late", OPEN_CHAIN)])
def test_errors_behind_the_first_tokens_fail_the_texts_sampled(
    make_llama: MakeLlama, tiny_files: TinyFiles, monkeypatch: pytest.MonkeyPatch, wrong: str, chain: dict[str, float]
) -> None:
    """Some tokens become another one, under the sampling rules alone."""
    a_round = Generation._round

    def broken(self: Generation) -> Any:
        position = self._end - self._prompt_size
        tokens = list(a_round(self))
        if self._rule == "coupled" or self._request.chain["temperature"] == 0:
            return tokens
        is_wrong = {
            "late": lambda i, origin: position + i >= 2,
            "bonus": lambda i, origin: origin == "bonus",
            "late draft": lambda i, origin: origin == "draft" and i >= 2,
        }[wrong]
        return [(300, origin) if is_wrong(i, origin) else (token, origin) for i, (token, origin) in enumerate(tokens)]

    monkeypatch.setattr(Generation, "_round", broken)
    llm = make_llama(draft=tiny_files.identical)
    result = verify.run(llm, PROMPTS, samples=60, num_contexts=1, max_tokens=48, **chain)
    assert not any(text.problems for text in result.texts)
    assert [bool(test.problems) for test in result.tokens] == [True, True], to_text(result)
    assert not result.passed


def test_no_choice_is_no_failure(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """Where the chain leaves one token, any other would have been an impossible one."""
    result = verify.run(make_llama(draft=tiny_files.good), PROMPTS[:1], samples=20, top_k=1, **QUICK)
    assert result.passed, problems_of(result)
    assert {test.num_cells for test in result.sampling} == {1}


# --- Drafts that prove nothing ---------------------------------------------------------------------------------------


def test_nothing_drafted_is_no_proof(drafted_by: Callable[..., specllama.Llama]) -> None:
    result = verify.run(drafted_by(lambda history, gamma: ([], [])), PROMPTS[:1], samples=60, **QUICK)
    assert not any(text.differences for text in result.texts)
    assert not result.passed
    assert result.problems == []
    assert "texts: nothing was drafted, so nothing was compared" in result.untested
    assert "\n".join(result.untested).count("nothing was drafted, so nothing was tested") == 4
    assert "none drafted" in to_text(result)


def test_nothing_accepted_is_said(drafted_by: Callable[..., specllama.Llama]) -> None:
    """The loop is sound, and the verification with it; a reader must know that no accepted token was seen."""
    never = _core.Distribution([0], [1.0])  # <unk>, which this target practically excludes
    result = verify.run(drafted_by(lambda history, gamma: ([0], [never])), PROMPTS[:1], samples=60, **QUICK)
    assert result.passed, problems_of(result)
    assert [note.split(":")[0] for note in result.notes] == ["texts", "samples"]
    assert "no drafted token was accepted" in to_text(result)


@pytest.mark.filterwarnings("ignore::specllama.FallbackWarning")
def test_drafting_that_stops_half_way_is_no_proof(drafted_by: Callable[..., specllama.Llama]) -> None:
    def drafter(history: Any, gamma: int) -> tuple[list[int], list[_core.Distribution]]:
        if len(history) > 30:
            raise RuntimeError("out of luck")
        return [270], [_core.Distribution([270], [1.0])]

    result = verify.run(drafted_by(drafter), PROMPTS[:1], samples=60, **QUICK)
    assert not any(text.differences for text in result.texts)
    assert not result.passed
    assert "greedy text of cat: decoded plainly: out of luck" in problems_of(result)


# --- A loop with one thing wrong -------------------------------------------------------------------------------------


class BrokenEngine:
    """The native loop with one thing wrong when it drafts."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.drafts = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def begin(self, prompt: Any, **settings: Any) -> None:
        self.drafts = settings["num_draft_tokens"] > 0
        self.engine.begin(prompt, **(self.changed(settings) if self.drafts else settings))

    def changed(self, settings: dict[str, Any]) -> dict[str, Any]:
        return settings


class OtherSeed(BrokenEngine):
    def changed(self, settings: dict[str, Any]) -> dict[str, Any]:
        return {**settings, "seed": settings["seed"] + 1}


class OtherChain(BrokenEngine):
    """No top-k, top-p or min-p, and so a token now and then that the chain excludes."""

    def changed(self, settings: dict[str, Any]) -> dict[str, Any]:
        sampler = _core.SamplerParams(top_k=0, top_p=1.0, min_p=0.0)
        return {**settings, "sampler": sampler}


class Corrupting(BrokenEngine):
    """Writes another token's keys and values over those of the last one in the target's cache."""

    context: _core.Sequence

    def step(self, max_tokens: int) -> Any:
        result = self.engine.step(max_tokens)
        if self.drafts:
            held = self.context.tokens()
            self.context.keep(len(held) - 1)
            self.context.decode(np.array([300], dtype=np.int32), 1)
            self.context.assume(held)
        return result


def broken(llm: specllama.Llama, kind: type[BrokenEngine]) -> specllama.Llama:
    engine: Any = kind(llm.engine.slot.loop)
    engine.context = lent(llm).sequence
    llm.engine.slot._loop = engine
    return llm


def test_another_seed_on_one_path_fails_the_texts(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = broken(make_llama(draft=tiny_files.good), OtherSeed)
    result = verify.run(llm, PROMPTS, samples=150, **QUICK)
    assert not result.passed
    assert not any(test.problems for test in result.sampling)
    for text in result.texts:
        assert bool(text.problems) == (text.mode == "coupled")
        if text.mode == "coupled":
            (difference,) = text.differences
            assert difference.plain_gap == 0.0
            assert difference.gap is None or difference.gap > 100 * difference.rounding
            assert text.num_compared == difference.index + 1
    assert "rounding does not explain it" in problems_of(result)


def test_a_corrupted_cache_fails_the_texts(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = broken(make_llama(draft=tiny_files.good), Corrupting)
    result = verify.run(llm, PROMPTS, samples=50, **QUICK)
    failed = [text for text in result.texts if text.problems]
    assert {text.mode for text in failed} == {"greedy", "coupled"}
    assert len(failed) >= len(result.texts) // 2
    for text in failed:
        difference = text.differences[-1]
        assert difference.plain_gap == 0.0, "the draft came after plain decoding, and cannot have harmed that"
        assert difference.gap is None or difference.gap > SAFETY * difference.rounding


def test_another_sampler_chain_fails_both_parts(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = broken(make_llama(draft=tiny_files.good), OtherChain)
    result = verify.run(llm, PROMPTS, samples=200, **QUICK)
    assert any(text.problems for text in result.texts)
    assert all(test.problems for test in result.sampling)
    assert sum(test.num_impossible for test in result.sampling) > 0
    assert "none that the target's sampler chain allows" in problems_of(result)


# --- Near-ties -------------------------------------------------------------------------------------------------------


class TakesTheOther(BrokenEngine):
    """Under one rule, says `other` where it ought to say `one`: what rounding does where both tie."""

    one = other = 0
    rule = "block"

    def begin(self, prompt: Any, **settings: Any) -> None:
        super().begin(prompt, **settings)
        self.drafts = self.drafts and settings["rule"] == self.rule

    def step(self, max_tokens: int) -> Any:
        done = self.engine.step(max_tokens)
        tokens = [self.other if self.drafts and token == self.one else token for token in done.tokens]
        return SimpleNamespace(tokens=tokens, num_drafted=done.num_drafted, num_accepted=done.num_accepted)


@pytest.fixture
def tied(make_llama: MakeLlama, tmp_path: Path) -> specllama.Llama:
    """Two tokens tie everywhere, and are more likely than others."""
    words = tiny.word_vocabulary()
    weights = tiny.llama_weights(words, seed=1)
    one, other = 265, 320
    weights["output.weight"][one] *= 1.5
    weights["output.weight"][other] = weights["output.weight"][one]
    target = tiny.write_llama(tmp_path / "tied.gguf", words, weights)
    draft = tiny.write_llama(tmp_path / "draft.gguf", words, tiny.noisy(weights, 0.05, seed=2))
    llm = broken(make_llama(target, draft), TakesTheOther)
    engine: Any = llm.engine.slot.loop
    engine.one, engine.other = one, other
    return llm


def test_a_near_tie_is_no_failure_and_what_is_behind_it_is_compared(tied: specllama.Llama) -> None:
    result = verify.run(tied, PROMPTS, samples=60, rules=["rejection"], **QUICK)
    assert result.passed, problems_of(result)
    differences = [(text.mode, difference) for text in result.texts for difference in text.differences]
    assert len(differences) == result.num_near_ties > 2
    for mode, difference in differences:
        assert mode == "greedy"
        assert (difference.plain, difference.drafted) == (265, 320)
        assert difference.near_tie
        assert difference.gap is not None
        assert difference.gap <= SAFETY * difference.rounding < 0.05
    assert max(len(text.differences) for text in result.texts) > 1
    assert all(text.num_compared == text.num_tokens for text in result.texts)
    text = to_text(result)
    assert f"but for {len(differences)} near-ties" in text.splitlines()[-1]
    assert text.count(": a near-tie") == len(differences)


def test_behind_a_near_tie_with_penalties_nothing_is_compared(tied: specllama.Llama) -> None:
    result = verify.run(tied, PROMPTS, samples=60, rules=["rejection"], repeat_penalty=1.01, **QUICK)
    assert result.passed, problems_of(result)
    assert result.num_near_ties > 0
    for text in result.texts:
        assert text.num_compared == (text.differences[0].index + 1 if text.differences else text.num_tokens)
    assert any("compared up to a near-tie only" in note for note in result.notes)
    assert " of 32 |" in to_text(result)


def test_the_other_of_two_tied_tokens_is_a_failure_where_noise_decides(tied: specllama.Llama) -> None:
    """The loop's fault is the same, but under the coupled rule their noise tells the two apart."""
    engine: Any = tied.engine.slot.loop
    engine.rule = "coupled"
    result = verify.run(tied, PROMPTS, samples=60, rules=["rejection"], **QUICK)
    failed = [text for text in result.texts if text.problems]
    assert failed
    assert {text.mode for text in failed} == {"coupled"}
    assert "NOT a near-tie" in to_text(result)
