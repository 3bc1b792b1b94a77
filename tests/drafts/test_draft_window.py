"""A draft model that holds a window of the text: it drafts what the window says, and texts stay the target's."""

from __future__ import annotations

import ctypes
import itertools
import pickle
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from engine import Engine, api, begin, opened
from exact import EXACT_CACHE
from fresh import RULES, assert_texts_of_plain_decoding, text_of
from test_engine_statistics import CHAINS, Scorer, assert_drafted_sequences_are_the_targets
from test_scheduler import prompts

import specllama
from specllama import _core

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import MakeLlama, TinyFiles

WINDOWS = [1, 2, 3, 4, 7, 16, 1000]
PROMPT = [1, *np.random.default_rng(5).integers(260, 310, 40).tolist()]
LONG = "the cat sat on the dog and " * 8
LENGTH_OF_TEXT = 60


def window_begin(size: int, window: int) -> int:
    """Where the window of a text of `size` tokens begins: it holds all of a short text, and moves by three quarters."""
    begin = 0
    while size - begin > window:
        begin += window - window // 4
    return begin


class Windowed(Engine):
    """A loop whose draft model is alone, and has a window."""

    def __init__(self, target: Path, draft: Path, window: int, *, n_ctx: int | None = None) -> None:
        super().__init__(target, draft)
        if n_ctx is not None:  # less than llama.cpp makes a context of
            assert self.draft_llama is not None
            address = ctypes.cast(self.draft_llama.ctx, ctypes.c_void_p).value
            assert address is not None
            self.draft = None
            self.draft = _core.Sequence(_core.Decoder(api(), address, "draft", n_ctx), 0)
        self.speculator = _core.Speculator(self.target, [_core.Drafter.model(self.draft, window=window)])


@pytest.fixture
def make_engine(tiny_files: TinyFiles) -> Iterator[Callable[..., Windowed]]:
    made: list[Windowed] = []

    def make(draft: str, window: int, *, target: Path = tiny_files.target, **kwargs: Any) -> Windowed:
        made.append(Windowed(target, getattr(tiny_files, draft), window, **kwargs))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


@pytest.mark.parametrize("window", WINDOWS)
def test_the_draft_holds_the_window_and_nothing_else(make_engine: Callable[..., Windowed], window: int) -> None:
    engine = make_engine("good", window)
    assert engine.draft is not None
    engine.begin(PROMPT, gamma=3)
    decoded = 0
    for _ in range(40):
        held_before = engine.draft.tokens().tolist()
        text_before = engine.history()
        first = window_begin(len(text_before), window)
        engine.step()
        text = engine.history()
        held = engine.draft.tokens().tolist()
        if window_begin(len(text), window) == first:
            assert held == text[first : first + len(held)]
            assert len(held) >= len(text_before) - first
        lacked = len(text_before) - first - common(held_before, text_before[first:-1])
        decoded += lacked + engine.rounds[-1].num_drafted - 1
        assert engine.speculator.counters.num_draft_tokens_decoded <= decoded + window
        assert window_begin(len(text), window) >= len(text) - window


def common(one: list[int], other: list[int]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


@pytest.mark.parametrize("window", WINDOWS)
def test_what_is_drafted_is_what_the_window_says(
    make_engine: Callable[..., Windowed], tiny_files: TinyFiles, window: int
) -> None:
    """Round by round, a plain model that is shown the window alone drafts the same."""
    alone = opened(tiny_files.good, n_ctx=512, logits_all=True)

    def draft(history: np.ndarray[Any, Any], count: int) -> tuple[list[int], list[_core.Distribution]]:
        tokens = [int(token) for token in history[window_begin(len(history), window) :]]
        drafted: list[int] = []
        for _ in range(count):
            alone.reset()
            alone.eval([*tokens, *drafted])
            drafted.append(int(alone.scores[alone.n_tokens - 1].argmax()))
        return drafted, [_core.Distribution([token], [1.0]) for token in drafted]

    engine = make_engine("good", window)
    oracle = Engine(tiny_files.target)
    oracle.speculator = _core.Speculator(oracle.target, [_core.Drafter.function(draft)])
    for one in (engine, oracle):
        one.begin(PROMPT, gamma=3, temperature=0.0)
        for _ in range(25):
            one.step()
    assert [found.num_accepted for found in engine.rounds] == [found.num_accepted for found in oracle.rounds]
    assert [found.tokens for found in engine.rounds] == [found.tokens for found in oracle.rounds]
    oracle.close()
    alone.close()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("window", [1, 4, 16, 1000])
def test_greedy_and_seeded_texts_are_those_of_plain_decoding(
    make_llama: MakeLlama, tiny_files: TinyFiles, window: int, rule: str
) -> None:
    plain = make_llama(num_draft_tokens=0, **EXACT_CACHE)
    llm = make_llama(draft=tiny_files.good, draft_window=window, verify=rule, **EXACT_CACHE)
    texts = [LONG, "a dog", LONG + " no fox", LONG[:60]]
    assert_texts_of_plain_decoding(llm, plain, rule, texts, [1, 5, "auto"])
    assert llm.total_stats.num_accepted_tokens > 0


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("gamma", [2, 6])
def test_a_seed_repeats_a_text_whatever_came_before(
    make_llama: MakeLlama, tiny_files: TinyFiles, rule: str, gamma: int
) -> None:
    """Where the text depends on the draft, too: the window is a matter of the text alone."""
    options: dict[str, Any] = {"draft_window": 12, "verify": rule, "num_draft_tokens": gamma, **EXACT_CACHE}
    used = make_llama(draft=tiny_files.bad, **options)
    for prompt in (LONG[:70], LONG[:90], LONG):
        text_of(used, prompt)
    for prompt in (LONG[:100], LONG, LONG[:70]):
        assert text_of(used, prompt) == text_of(make_llama(draft=tiny_files.bad, **options), prompt)


@pytest.mark.statistics
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("chain", ["T=1", "default", "penalties and bias"])
def test_sequences_have_the_distribution_of_the_target(
    make_engine: Callable[..., Windowed], tiny_files: TinyFiles, scorer: Scorer, chain: str, rule: str
) -> None:
    """With a window that moves in the middle of them."""
    engine = make_engine("letters_good", 5, target=tiny_files.letters)
    assert_drafted_sequences_are_the_targets(engine, scorer, CHAINS[chain], rule)


def test_a_text_that_goes_back(make_engine: Callable[..., Windowed], tiny_files: TinyFiles) -> None:
    """By less than the window, by more, and on with other tokens."""
    engine, plain = make_engine("good", 8), Engine(tiny_files.target)
    for one in (engine, plain):
        begin(one.speculator, PROMPT, rule="coupled", gamma=4 if one is engine else 0, temperature=1.0)
    for length, tokens in ((45, [270, 271]), (58, []), (43, [280] * 20), (70, [1])):
        for one in (engine, plain):
            while len(one.history()) < 75:
                one.step(75 - len(one.history()))
            one.speculator.rewind(length)
            one.speculator.extend(np.array(tokens, dtype=np.int32))
    assert engine.take(30) == plain.take(30)
    assert engine.speculator.drafting_stopped == ""
    assert engine.speculator.counters.num_accepted_tokens > 0
    plain.close()


@pytest.mark.parametrize("n_ctx", [1, 2, 5, 30])
def test_a_context_that_is_smaller_than_the_text(
    make_engine: Callable[..., Windowed], tiny_files: TinyFiles, n_ctx: int
) -> None:
    engine, plain = make_engine("good", 0, n_ctx=n_ctx), Engine(tiny_files.target)
    expected = plain.generate(PROMPT, LENGTH_OF_TEXT, gamma=0, temperature=0.0)
    assert engine.generate(PROMPT, LENGTH_OF_TEXT, gamma=4, temperature=0.0) == expected
    assert engine.speculator.drafting_stopped == ""
    assert engine.speculator.counters.num_draft_tokens > 10
    plain.close()


@pytest.mark.parametrize("kind", ["recurrent", "hybrid", "sliding"])
@pytest.mark.parametrize("window", [4, 30])
def test_other_memories(make_llama: MakeLlama, tiny_files: TinyFiles, kind: str, window: int) -> None:
    """The window moves by a memory that is emptied: any can be."""
    target: Path = getattr(tiny_files, kind)
    draft: Path = getattr(tiny_files, f"{kind}_draft")
    llm = make_llama(target, draft, draft_window=window, **EXACT_CACHE)
    plain = make_llama(target, num_draft_tokens=0, **EXACT_CACHE)
    for prompt in (LONG, "a dog", LONG + " no fox"):
        assert text_of(llm, prompt, temperature=0.0) == text_of(plain, prompt, temperature=0.0)
        assert llm.stats.fallback_reason is None
        assert llm.stats.num_draft_tokens > 0


@pytest.mark.parametrize("cache_tokens", [None, 512])
def test_several_texts(make_llama: MakeLlama, tiny_files: TinyFiles, cache_tokens: int | None) -> None:
    """Also where some are paused, and computed anew."""
    options: dict[str, Any] = {"max_parallel": 6, "cache_tokens": cache_tokens, **EXACT_CACHE}
    given = prompts(14, shared=40)
    sampled: dict[str, Any] = {"max_tokens": 70, "temperature": 0.9, "seed": 3}
    plain = [found.text for found in make_llama(num_draft_tokens=0, **EXACT_CACHE).create_completions(given, **sampled)]
    for window in (1, 20):
        llm = make_llama(draft=tiny_files.good, draft_window=window, **options)
        assert [found.text for found in llm.create_completions(given, **sampled)] == plain
        assert llm.total_stats.num_accepted_tokens > 0


def test_little_of_a_long_prompt_is_read(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    whole = make_llama(draft=tiny_files.good)
    part = make_llama(draft=tiny_files.good, draft_window=16)
    for llm in (whole, part):
        text_of(llm, LONG, max_tokens=1, num_draft_tokens=3)
    prompt = whole.stats.num_prompt_tokens
    assert prompt > 50
    text_of(part, LONG + "dog", max_tokens=3, temperature=0.0)
    assert part.stats.num_draft_tokens_decoded <= 16 + 4


def test_a_pickled_llama_has_its_window(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good, draft_window=16)
    copy: specllama.Llama = pickle.loads(pickle.dumps(llm))
    assert copy.__getstate__()["draft_window"] == 16
    copy.close()


@pytest.mark.parametrize(("value", "error"), [(0, ValueError), (-1, ValueError), (True, TypeError), ("all", TypeError)])
def test_bad_windows(tiny_files: TinyFiles, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="draft_window"):
        specllama.Llama(str(tiny_files.target), draft_window=value)
