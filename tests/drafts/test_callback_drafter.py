"""A drafter that is a function: exact as long as it is honest about q, and harmless when it fails."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np
import pytest
import reference as ref
import tiny_models as tiny
from engine import Engine
from test_engine_statistics import LENGTH, LEVEL, PROMPT, RULES, VOCAB, Scorer, chi_square, sequence_probabilities

from specllama import _core

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

WORDS = [1, 270, 280, 290, 265]
WORD_COUNT = len(tiny.word_vocabulary())
CHAIN = ref.Chain(temperature=0.9, top_k=6, top_p=1.0, min_p=0.0)
SAMPLER = {"temperature": 0.9, "top_k": 6, "top_p": 1.0, "min_p": 0.0}

Proposal = tuple[Sequence[int], Sequence[_core.Distribution]]
Drafter = Callable[["np.ndarray[Any, np.dtype[np.int32]]", int], Proposal]


class CallbackEngine(Engine):
    """A target and a loop over it whose drafts come from a function."""

    def __init__(self, target: Path, drafter: Drafter) -> None:
        super().__init__(target)
        self.speculator = _core.Speculator(self.target, [_core.Drafter.function(drafter)])


MakeEngine = Callable[[Drafter], CallbackEngine]


@pytest.fixture
def letters(tiny_files: TinyFiles) -> Iterator[MakeEngine]:
    """Over a vocabulary of eight, where every sequence can be counted."""
    yield from opened(tiny_files.letters)


@pytest.fixture
def words(tiny_files: TinyFiles) -> Iterator[MakeEngine]:
    yield from opened(tiny_files.target)


def opened(target: Path) -> Iterator[MakeEngine]:
    engines: list[CallbackEngine] = []

    def make(drafter: Drafter) -> CallbackEngine:
        engines.append(CallbackEngine(target, drafter))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def one_hot(token: int) -> _core.Distribution:
    return _core.Distribution([token], [1.0])


def lookup(history: np.ndarray[Any, np.dtype[np.int32]], gamma: int) -> Proposal:
    """What came behind the last occurrence of the last token; the token itself where there is none."""
    tokens = history.tolist()
    earlier = [i for i in range(len(tokens) - 1) if tokens[i] == tokens[-1]]
    drafted = (tokens[earlier[-1] + 1 :] if earlier else tokens[-1:])[:gamma]
    return drafted, [one_hot(token) for token in drafted]


class Drawing:
    """Draws tokens from a q of its own, which has little to do with the target, and says so."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(7)

    def __call__(self, history: np.ndarray[Any, np.dtype[np.int32]], gamma: int) -> Proposal:
        tokens, q = [], []
        for i in range(gamma):
            probs = np.roll([0.4, 0.2, 0.1, 0.1, 0.1, 0.05, 0.05, 0.0], int(history[-1]) + i)
            tokens.append(int(self.rng.choice(VOCAB, p=probs)))
            q.append(_core.Distribution([], probs))
        return tokens, q


class DrawingRows(Drawing):
    """The same, with q as an array [tokens, n_vocab] of 32 bits."""

    def __call__(self, history: np.ndarray[Any, np.dtype[np.int32]], gamma: int) -> Any:
        tokens, q = super().__call__(history, gamma)
        return tokens, np.array([row.probs for row in q], dtype=np.float32)


@pytest.fixture(scope="module")
def exact(tiny_files: TinyFiles) -> Iterator[ref.Array]:
    """The probability of every sequence of three letters, by plain llama_cpp.Llama: [VOCAB, VOCAB, VOCAB]."""
    llm = llama_cpp.Llama(
        str(tiny_files.letters), n_ctx=64, n_threads=1, n_threads_batch=1, verbose=False, logits_all=True
    )
    yield sequence_probabilities(Scorer(llm, PROMPT), CHAIN)
    llm.close()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("drafter", ["lookup", "drawing", "rows"])
def test_honest_drafters_leave_the_distribution_as_it_is(
    letters: MakeEngine, exact: ref.Array, drafter: str, rule: str
) -> None:
    """A lookup has drawn from nothing, so its q is one-hot. `coupled` needs no q: it is exact whatever is drafted."""
    assert exact.sum() == pytest.approx(1.0)
    drafters: dict[str, Drafter] = {"lookup": lookup, "drawing": Drawing(), "rows": DrawingRows()}
    engine = letters(drafters[drafter])
    counts = np.zeros_like(exact)
    accepted = 0
    for seed in range(3000):
        counts[tuple(engine.generate(PROMPT, LENGTH, rule=rule, gamma=3, seed=seed, **SAMPLER))] += 1
        accepted += engine.speculator.counters.num_accepted_tokens
    assert chi_square(counts, exact) > LEVEL
    assert accepted > 300
    assert engine.speculator.drafting_stopped == ""


@pytest.mark.statistics
@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_a_drafter_that_lies_about_its_q_is_seen(letters: MakeEngine, exact: ref.Array, rule: str) -> None:
    """The test above can tell: here tokens are drawn from another q than the one that is given."""
    honest = DrawingRows()

    def lying(history: np.ndarray[Any, np.dtype[np.int32]], gamma: int) -> Any:
        tokens, q = honest(history, gamma)
        return tokens, np.full_like(q, 1 / VOCAB)

    engine = letters(lying)
    counts = np.zeros_like(exact)
    for seed in range(3000):
        counts[tuple(engine.generate(PROMPT, LENGTH, rule=rule, gamma=3, seed=seed, **SAMPLER))] += 1
    assert chi_square(counts, exact) < LEVEL


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rule", RULES)
def test_a_function_with_a_q_through_llama(
    make_llama: MakeLlama, tiny_files: TinyFiles, exact: ref.Array, rule: str
) -> None:
    """It offers more tokens than are asked for: those behind are left out, with their q."""
    drawing = DrawingRows()
    llm = make_llama(
        tiny_files.letters,
        lambda history: drawing(history, 5),
        num_draft_tokens=3,
        verify=rule,
        n_ctx=64,
    )
    counts = np.zeros_like(exact)
    for seed in range(1500):
        llm.set_seed(seed)
        tokens = llm.generate(PROMPT, temp=SAMPLER["temperature"], top_k=6, top_p=1.0, min_p=0.0)
        counts[tuple(itertools.islice(tokens, LENGTH))] += 1
    assert chi_square(counts, exact) > LEVEL
    assert llm.total_stats.num_accepted_tokens > 150
    assert llm.stats.fallback_reason is None


@pytest.mark.parametrize("gamma", [1, 4, 7])
@pytest.mark.parametrize("rule", RULES)
def test_greedy_text_is_that_of_plain_decoding(words: MakeEngine, rule: str, gamma: int) -> None:
    engine = words(lookup)
    plain = engine.generate(WORDS, 60, gamma=0, temperature=0.0)
    assert engine.speculator.counters.num_drafts == 0
    assert engine.generate(WORDS, 60, rule=rule, gamma=gamma, temperature=0.0) == plain
    oracle = words(lambda history, n: ((rest := plain[len(history) - len(WORDS) :][:n]), [one_hot(t) for t in rest]))
    assert oracle.generate(WORDS, 60, rule=rule, gamma=gamma, temperature=0.0) == plain
    assert oracle.speculator.counters.num_accepted_tokens >= 60 * gamma // (gamma + 1) - gamma
    assert oracle.speculator.counters.num_accepted_tokens == oracle.speculator.counters.num_draft_tokens


def test_what_the_function_is_given(words: MakeEngine) -> None:
    calls: list[tuple[list[int], int]] = []

    def watch(history: np.ndarray[Any, np.dtype[np.int32]], gamma: int) -> Proposal:
        calls.append((history.tolist(), gamma))
        return lookup(history, gamma)

    engine = words(watch)
    engine.begin(WORDS, gamma=4, temperature=0.0)
    emitted = list(WORDS)
    for left in (100, 100, 3, 2, 1):
        calls.clear()
        before = list(emitted)
        emitted += engine.step(left)
        assert calls == ([(before, min(4, left - 1))] if left > 1 else [])
    assert engine.history() == emitted


def test_nothing_is_drafted_behind_an_end(words: MakeEngine) -> None:
    end = 2
    engine = words(lambda history, gamma: ([280, end, 290, end], [one_hot(token) for token in (280, end, 290, end)]))
    assert engine.target_llama.token_eos() == end
    engine.begin(WORDS, gamma=4)
    for _ in range(9):
        engine.step()
    assert {round_.num_drafted for round_ in engine.rounds} == {2}


def test_no_tokens_is_a_plain_round(words: MakeEngine) -> None:
    engine = words(lambda history, gamma: ([], []))
    plain = engine.generate(WORDS, 20, gamma=0, temperature=0.0)
    assert engine.generate(WORDS, 20, gamma=4, temperature=0.0) == plain
    assert engine.speculator.counters.num_drafts == 0
    assert engine.speculator.drafting_stopped == ""


def interrupt(history: object, gamma: int) -> Proposal:
    raise KeyboardInterrupt


def rows(*changes: tuple[int, int, float], shape: tuple[int, ...] = (2, WORD_COUNT)) -> np.ndarray[Any, Any]:
    """A q of 0 but for some (row, token, probability)."""
    q = np.zeros(shape)
    for row, token, probability in changes:
        q[row, token] = probability
    return q


def two(q: Any) -> Drafter:
    """The tokens 270 and 280 with this q."""
    return lambda history, gamma: ([270, 280], q)


GOOD = ((0, 270, 1.0), (1, 280, 1.0))

FAILURES: dict[str, tuple[Drafter, str]] = {
    "rows of another size": (
        two(rows(*GOOD, shape=(2, 300))),
        rf"2 tokens and a q of shape (2, 300): it must be (2, {WORD_COUNT})",
    ),
    "too few rows": (two(rows((0, 270, 1.0), shape=(1, WORD_COUNT))), "q of shape (1, "),
    "too many rows": (two(rows(*GOOD, shape=(3, WORD_COUNT))), "q of shape (3, "),
    "no rows": (two(np.ones(WORD_COUNT)), f"q of shape ({WORD_COUNT},)"),
    "q of texts": (two(np.array([["a"]])), "could not convert"),
    "rows that sum to less": (two(rows(GOOD[0], (1, 280, 0.98))), "token 280 at position 1 with a q that sums to 0.98"),
    "rows that sum to more": (two(rows(*GOOD, (0, 5, 0.02))), "token 270 at position 0 with a q that sums to 1.02"),
    "a row with NaN": (
        two(rows(*GOOD, (1, 5, float("nan")))),
        "token 280 at position 1 with a q that has the value nan",
    ),
    "a row with infinity": (two(rows(*GOOD, (1, 5, float("inf")))), "has the value inf"),
    "a negative row": (two(rows(GOOD[0], (1, 280, 1.5), (1, 5, -0.5))), "has the value -0.5"),
    "a row without the token": (two(rows(GOOD[0], (1, 281, 1.0))), "token 280 at position 1: it must be one"),
    "a row of zeros": (two(rows(GOOD[0])), "token 280 at position 1 with a q that sums to 0"),
    "too many tokens": (lambda h, n: ([270] * (n + 1), [one_hot(270)] * (n + 1)), "gave 5 tokens and 5 distributions"),
    "too few q": (lambda h, n: ([270, 280], [one_hot(270)]), "gave 2 tokens and 1 distributions"),
    "too many q": (lambda h, n: ([270], [one_hot(270)] * 2), "gave 1 tokens and 2 distributions"),
    "q without the token": (lambda h, n: ([270], [one_hot(280)]), "token 270 at position 0"),
    "q of zero": (lambda h, n: ([270], [_core.Distribution([270, 280], [0.0, 1.0])]), "probability above 0"),
    "out of range": (lambda h, n: ([270, 10**6], [one_hot(270), one_hot(10**6)]), "token 1000000 at position 1"),
    "negative": (lambda h, n: ([-1], [one_hot(-1)]), "token -1 at position 0"),
    "an exception": (lambda h, n: ([1 // 0], []), "division"),
    "no tuple": (lambda h, n: None, "NoneType"),  # type: ignore[arg-type,return-value]
    "no tokens": (lambda h, n: ("ab", []), "cast"),  # type: ignore[arg-type,return-value]
    "no q": (lambda h, n: ([270, 280], None), "cast"),  # type: ignore[arg-type,return-value]
    "q of another type": (lambda h, n: ([270], ["x"]), "cast"),  # type: ignore[arg-type,return-value,list-item]
    "tokens only": (lambda h, n: ([270],), "index out of range"),  # type: ignore[arg-type,return-value]
}


@pytest.mark.parametrize("rule", RULES)
def test_ctrl_c_ends_the_round_and_loses_no_text(words: MakeEngine, rule: str) -> None:
    calls = 0

    def drafter(history: np.ndarray[Any, np.dtype[np.int32]], gamma: int) -> Proposal:
        nonlocal calls
        calls += 1
        return interrupt(history, gamma) if calls == 3 else lookup(history, gamma)

    engine = words(drafter)
    settings: dict[str, Any] = {"rule": rule, "temperature": 0.0}
    plain = engine.generate(WORDS, 40, gamma=0, **settings)
    engine.begin(WORDS, gamma=4, **settings)
    text = engine.step() + engine.step()
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert engine.history() == WORDS + text
    while len(text) < 40:
        text += engine.step()
    assert text[:40] == plain
    assert engine.speculator.drafting_stopped == ""


@pytest.mark.sampled(15)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_stops_drafting_and_harms_no_text(words: MakeEngine, name: str, rule: str) -> None:
    """It comes in the third round, when the loop is under way; the text goes on plainly, and the next one drafts."""
    fail, message = FAILURES[name]
    calls = 0

    def drafter(history: np.ndarray[Any, np.dtype[np.int32]], gamma: int) -> Proposal:
        nonlocal calls
        calls += 1
        return fail(history, gamma) if calls == 3 else lookup(history, gamma)

    engine = words(drafter)
    settings: dict[str, Any] = {"rule": rule, "temperature": 0.0}
    plain = engine.generate(WORDS, 40, gamma=0, **settings)
    engine.begin(WORDS, gamma=4, **settings)
    text: list[int] = []
    while len(text) < 40:
        text += engine.step()
        assert engine.target.tokens().tolist() == engine.history()[:-1]
    assert text[:40] == plain
    assert message in engine.speculator.drafting_stopped
    assert calls == 3
    assert engine.speculator.counters.num_drafts == 2
    assert engine.generate(WORDS, 40, gamma=4, **settings) == plain
    assert engine.speculator.drafting_stopped == ""
    assert calls > 3
