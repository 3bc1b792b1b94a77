"""What specllama.verify judges by: cells and chi-square, gaps and rounding, exact probabilities. With known answers."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np
import pytest
import reference as ref
import scipy.stats

from specllama import _core_test as _test
from specllama.engine import Request
from specllama.engine.options import Options
from specllama.evidence.statistics import goodness_of_fit
from specllama.evidence.verify.exact import PairScorer
from specllama.evidence.verify.rounding import NUM_LEADING, Position, rounding, rows_by_shape
from specllama.evidence.verify.sampling import in_cells

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles


# --- Cells -----------------------------------------------------------------------------------------------------------


def test_pairs_are_counted_in_cells() -> None:
    """Of 100 pairs: (0, 0) 30, (0, 1) 20, the rest behind 0 10; (1, 2) 20, and 4 behind 1 with the 16 of all others."""
    first = np.array([0.6, 0.24, 0.1, 0.06])
    second = {0: np.array([0.5, 1 / 3, 1 / 12, 1 / 12]), 1: np.array([1 / 12, 1 / 12, 5 / 6, 0.0])}
    drawn = [(0, 0)] * 31 + [(0, 1)] * 19 + [(0, 2), (0, 3)] * 4 + [(1, 2)] * 21 + [(1, 0)] * 7 + [(2, 0), (3, 3)] * 7
    probs, counts = in_cells(first, second, drawn)
    assert sorted(zip(counts.tolist(), probs, strict=True)) == [
        (8, pytest.approx(0.1)),
        (19, pytest.approx(0.2)),
        (21, pytest.approx(0.04 + 0.16)),
        (21, pytest.approx(0.2)),
        (31, pytest.approx(0.3)),
    ]


def test_a_rest_too_small_to_count_joins_the_smallest_cell() -> None:
    first = np.array([0.8, 0.17, 0.03])
    second = {0: np.array([1.0, 0.0, 0.0]), 1: np.array([0.0, 1.0, 0.0])}
    probs, counts = in_cells(first, second, [(0, 0), (1, 1), (2, 2), (0, 1)] * 25)
    assert probs.tolist() == pytest.approx([0.8, 0.2])
    assert counts.tolist() == [25, 75]


def test_with_too_few_samples_there_is_one_cell() -> None:
    probs, counts = in_cells(np.full(100, 0.01), {}, [(3, 4), (5, 6)] * 50)
    assert (probs.tolist(), counts.tolist()) == (pytest.approx([1.0]), [100])


# --- Goodness of fit -------------------------------------------------------------------------------------------------

PROBS = np.array([0.3, 0.2, 0.15, 0.1, 0.1, 0.05, 0.05, 0.03, 0.02])


def test_distances_are_those_of_the_textbook() -> None:
    fit = goodness_of_fit(np.array([60, 40]), np.array([0.5, 0.5]), 0.01)
    assert fit.total_variation == pytest.approx(0.1)
    assert fit.chi_square == pytest.approx(4.0)
    exact = 2 * scipy.stats.binom.cdf(40, 100, 0.5)  # what chi-square only approximates
    assert fit.p_value == pytest.approx(exact, abs=4 * math.sqrt(exact / 2500))
    assert fit.chance_mean == pytest.approx(math.sqrt(0.25 / 100) * math.sqrt(2 / math.pi), rel=0.05)


def test_an_exact_sampler_fails_as_often_as_the_level_says() -> None:
    rng = np.random.default_rng(5)
    p_values = np.array([goodness_of_fit(rng.multinomial(300, PROBS), PROBS, 0.05).p_value for _ in range(600)])
    assert scipy.stats.kstest(p_values, "uniform").pvalue > 1e-3
    assert np.count_nonzero(p_values < 0.05) == pytest.approx(30, abs=4 * math.sqrt(30))


def test_the_level_is_resolved() -> None:
    """The least p-value there is lies well below the level, also for the many tests of a long run."""
    impossible = np.array([0, 300])
    for level in (0.05, 1e-3, 1e-4):
        assert goodness_of_fit(impossible, np.array([0.9, 0.1]), level).p_value < level / 20


# --- Gaps ------------------------------------------------------------------------------------------------------------

LOGITS = np.array([2.0, 1.5, 1.0, -1.0, -3.0], dtype=np.float32)
OPEN = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}


def request_for(tokens: Sequence[int], sampling: dict[str, Any], seed: int) -> Request:
    chain = {name: value for name, value in sampling.items() if name != "logit_bias"}
    options, bias = Options.checked(4, "coupled", 4), sampling.get("logit_bias", {})
    return Request(tokens, options, seed, True, chain, bias)


def position(sampling: dict[str, Any], seed: int = 0, generated: Sequence[int] = ()) -> Position:
    return Position(request_for([1], sampling, seed), list(generated))


@pytest.mark.parametrize(
    ("sampling", "generated", "expected"),
    [
        ({}, [], [0.0, 0.5, 1.0, 3.0, 5.0]),
        ({"logit_bias": {0: -1.0}}, [], [0.5, 0.0, 0.5, 2.5, 4.5]),
        ({"repeat_penalty": 2.0}, [0, 3], [0.5, 0.0, 0.5, 4.0, 4.5]),  # raw: -1 + 4 is penalised to 1.5
        ({"presence_penalty": 0.25, "frequency_penalty": 0.5}, [1, 1], [0.0, 1.75, 1.0, 3.0, 5.0]),
        ({"logit_bias": {2: float("-inf")}}, [], [0.0, 0.5, None, 3.0, 5.0]),
    ],
)
def test_the_gap_of_greedy_decoding_is_that_of_the_logits(
    sampling: dict[str, Any], generated: list[int], expected: list[float | None]
) -> None:
    at = position({"temperature": 0.0, **sampling}, generated=generated)
    for token, gap in enumerate(expected):
        assert at.gap(LOGITS, token) == (None if gap is None else pytest.approx(gap, rel=2e-3, abs=1e-5))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_the_gap_of_coupled_sampling_is_that_of_the_perturbed_logits(temperature: float) -> None:
    for seed in range(30):
        at = position({"temperature": temperature, **OPEN}, seed, generated=[7, 8, 9])
        scores = [LOGITS[token] + temperature * _test.gumbel(seed, 4, token) for token in range(len(LOGITS))]
        for token, score in enumerate(scores):
            assert at.gap(LOGITS, token) == pytest.approx(max(scores) - score, rel=2e-3, abs=1e-5)


@pytest.mark.parametrize("logit", [0.0, 0.7])
def test_where_a_cut_decides_the_gap_is_the_way_to_it(logit: float) -> None:
    """The noise is all for token 1, and min-p leaves it if both logits differ by no more than log 4."""
    logits = np.array([2.0, logit, -50.0], dtype=np.float32)
    sampling = {"temperature": 1.0, **OPEN, "min_p": 0.25}
    seed = next(s for s in range(10_000) if _test.gumbel(s, 1, 1) - _test.gumbel(s, 1, 0) > 3.0)
    assert position({**sampling, "min_p": 0.0}, seed).choice(logits) == 1
    at = position(sampling, seed)
    chosen = int(logit == 0.7)
    assert at.choice(logits) == chosen
    assert at.gap(logits, 1 - chosen) == pytest.approx(abs(2.0 - logit - math.log(4)), rel=2e-3)


# --- Rounding --------------------------------------------------------------------------------------------------------


def test_rounding_is_the_largest_change_of_a_difference_among_leading_tokens() -> None:
    plain = np.linspace(10.0, -30.0, 3 * NUM_LEADING).astype(np.float32)
    assert 0.0 < rounding([plain, plain.copy()], [0, 1]) < 1e-4
    shifted = plain + 5.0  # a common shift changes no probability
    assert rounding([plain, shifted], [0, 1]) < 1e-4
    other = plain.copy()
    other[3] += 0.25
    other[7] -= 0.5
    other[-1] += 100.0  # far behind, and no candidate
    assert rounding([plain, other], [0, 1]) == pytest.approx(0.75, abs=1e-5)
    assert rounding([plain, shifted, other], [0, 1]) == pytest.approx(0.75, abs=1e-5)
    assert rounding([plain, other], [0, len(plain) - 1]) == pytest.approx(100.5, abs=1e-4)


class RecordingScorer:
    """Keeps what was decoded, one list for each path: what was prefilled, then the batches. Rows say where they are."""

    def __init__(self) -> None:
        self.paths: list[list[list[int]]] = []
        self.held: list[int] = []

    def clear(self) -> None:
        self.held = []

    def prefill(self, tokens: Sequence[int]) -> None:
        self.paths.append([list(tokens)])

    def decode(self, batch: Sequence[int]) -> list[np.ndarray[Any, Any]]:
        self.paths[-1].append(list(batch))
        return [np.array([len(self.paths[-1]) - 1, i]) for i in range(len(batch))]

    def decode_last(self, tokens: Sequence[int]) -> np.ndarray[Any, Any]:
        self.held += tokens
        return np.array([0, 0])


@pytest.mark.parametrize("num_prompt", [1, 2, 6, 20])
@pytest.mark.parametrize("num_generated", [0, 1, 3, 4, 5, 11])
@pytest.mark.parametrize("gamma", [1, 4])
def test_shapes_of_batches(num_prompt: int, num_generated: int, gamma: int) -> None:
    history = list(range(100, 100 + num_prompt + num_generated))
    request = request_for(history[:num_prompt], {}, seed=0)
    scorer = RecordingScorer()
    rows = rows_by_shape(scorer, Position(request, history[num_prompt:]), gamma)  # type: ignore[arg-type]
    assert len(rows) == 4
    assert scorer.held == history
    assert len(scorer.paths) == 3
    for path, row, size in zip(scorer.paths, rows, (1, gamma + 1, gamma + 1), strict=False):
        prefilled, *batches = path
        assert len(prefilled) <= num_prompt - 1, "a generated token was decoded as a prompt"
        assert {len(batch) for batch in batches[1:]} <= {size}
        assert len(batches[0]) == size or not prefilled
        decoded = list(itertools.chain(*path))
        assert decoded[: len(history)] == history
        assert set(decoded[len(history) :]) <= {history[-1]}
        assert row[0] == len(batches), "the row is not of the last batch"
        assert len(decoded) - len(batches[-1]) + row[1] == len(history) - 1
    assert rows[1][1] == 0
    assert rows[2][1] == min(gamma, len(history) - 1)


# --- Exact probabilities ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [1, 4])
@pytest.mark.parametrize(
    "chain", [ref.Chain(top_k=4), ref.Chain(temperature=1.2, top_p=1.0, min_p=0.0, repeat_penalty=1.5)]
)
def test_exact_pairs(make_llama: MakeLlama, tiny_files: TinyFiles, chain: ref.Chain, gamma: int) -> None:
    prompt = [1, 3, 4, 5]
    llm = make_llama(tiny_files.letters, n_ctx=64)
    options = {f.name: getattr(chain, f.name) for f in dataclasses.fields(chain)}
    with llm.engine.direct() as direct:
        pair_scorer = PairScorer(direct, prompt, llm.engine.request(prompt, **options), gamma)
        exact = pair_scorer.exact(100)
        plain = llama_cpp.Llama(
            str(tiny_files.letters), n_ctx=64, n_threads=1, n_threads_batch=1, verbose=False, logits_all=True
        )
        plain.eval(prompt)
        p1 = ref.sampler_chain(plain.scores[len(prompt) - 1], chain).probs
        assert exact.first == pytest.approx(p1, abs=1e-5)
        assert exact.first_plain == pytest.approx(p1, abs=1e-5)
        assert exact.rounding < 1e-5
        assert set(exact.second) == set(np.flatnonzero(100 * p1 >= 5).tolist())
        assert len(exact.second) > 2
        for t1, p2 in exact.second.items():
            plain.reset()
            plain.eval([*prompt, t1])
            assert p2 == pytest.approx(ref.sampler_chain(plain.scores[len(prompt)], chain, [t1]).probs, abs=1e-5)
        plain.close()

        t1 = next(iter(exact.second))
        allowed = [(t1, int(t2)) for t2 in np.flatnonzero(exact.second[t1])]
        assert pair_scorer.num_impossible(exact, allowed) == 0
        out_first = [(int(token), 0) for token in np.flatnonzero(p1 == 0)]
        out_second = [(t1, int(t2)) for t2 in np.flatnonzero(exact.second[t1] == 0)] * 2
        assert len(out_first) == (4 if chain.top_k == 4 else 0)
        assert pair_scorer.num_impossible(exact, [*allowed, *out_first, *out_second]) == len(out_first + out_second)


def test_the_scorer_leaves_an_empty_cache(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """And finds its own way where the cache cannot be cut, as behind a sliding window."""
    for model in (tiny_files.target, tiny_files.sliding):
        llm = make_llama(model, n_batch=8)
        tokens = [1, *range(262, 302)]
        with llm.engine.direct() as direct:
            rows = []
            for length in (40, 12, 40, 25):
                direct.prefill(tokens[:length])
                rows.append(direct.decode(tokens[length : length + 1])[0])
                assert llm.engine.slot.sequence.tokens().tolist() == tokens[: length + 1]
            assert rows[0] == pytest.approx(rows[2], abs=1e-4)
            direct.clear()
            assert direct.decode_last(tokens[:26]) == pytest.approx(rows[3], abs=2e-2)
        assert llm.engine.slot.sequence.num_tokens == 0
        assert llm.n_tokens == 0
