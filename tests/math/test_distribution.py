"""The C++ sampler chain against reference.py and against llama.cpp's own samplers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import hypothesis
import hypothesis.strategies as st
import llama_cpp
import numpy as np
import numpy.typing as npt
import pytest
import reference as ref
from llama_chain import llama_cpp_probs

from specllama import _core
from specllama import _core_test as _test

if TYPE_CHECKING:
    from conftest import MakeBase

Logits = npt.NDArray[np.float32]
TOLERANCE = 1e-5
# Early releases add up the probabilities of a whole vocabulary in float32.
LLAMA_CPP_TOLERANCE = TOLERANCE if llama_cpp.__version__ not in ("0.3.16", "0.3.17", "0.3.18", "0.3.19") else 5e-5


def specllama_probs(
    logits: Logits, chain: ref.Chain, recent: Sequence[int], constraint: _core.Constraint | None = None
) -> ref.Array:
    """The probabilities of the C++ chain as a dense array, after checking the form in which they come."""
    values = {f.name: getattr(chain, f.name) for f in dataclasses.fields(chain)}
    params = _core.SamplerParams(**{**values, "logit_bias": dict(chain.logit_bias)})
    dist = _core.distribution(logits, params, list(recent), constraint)
    probs = np.zeros(len(logits))
    if dist.dense:
        assert len(dist.probs) == len(logits)
        probs[:] = dist.probs
    else:
        assert np.all(np.diff(dist.probs) <= 0), "sparse distributions are sorted by descending probability"
        assert len(set(dist.ids.tolist())) == len(dist.ids)
        probs[dist.ids] = dist.probs
    assert probs.sum() == pytest.approx(1.0, abs=1e-9)
    return probs


def assert_same(ours: ref.Array, theirs: ref.Array, tolerance: float) -> None:
    worst = int(np.argmax(np.abs(ours - theirs)))
    assert abs(ours[worst] - theirs[worst]) <= tolerance, f"number {worst}: {ours[worst]} and {theirs[worst]}"


def assert_all_agree(logits: Logits, chain: ref.Chain, recent: Sequence[int] = ()) -> bool:
    """All three agree. False if there is nothing to compare.

    That is so when a decision is closer than llama.cpp's float32 sums are exact, went the other way, and matters: among
    thousands of tokens there is always a close one, but it has next to no probability.
    """
    expected = ref.sampler_chain(logits, chain, recent)
    ours = specllama_probs(logits, chain, recent)
    results = [(expected.probs, TOLERANCE), (llama_cpp_probs(logits, chain, recent), LLAMA_CPP_TOLERANCE)]
    for theirs, tolerance in results:
        apart = np.zeros(len(logits), dtype=bool)
        if expected.margin < 1e-5 + 1e-9 * len(logits) and not expected.tied:
            apart = (ours > 0) != (theirs > 0)
        slack = 2 * float(max(ours[apart].sum(), theirs[apart].sum()))
        if slack > 2e-3 or (chain.xtc_probability > 0 and expected.margin < 1e-5):
            return False  # XTC moves mass without changing who has any
        # Which of equal logits is kept is up to the sorting algorithm: then compare what is kept, not who.
        pair = (np.sort(ours), np.sort(theirs)) if expected.tied else (ours, theirs)
        assert_same(*pair, tolerance + slack)
    return True


OFF = ref.Chain(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
CHAINS = {
    "default": ref.Chain(),
    "everything off": OFF,
    "greedy": ref.Chain(temperature=0.0),
    "negative temperature": ref.Chain(temperature=-1.0),
    "hot": dataclasses.replace(OFF, temperature=1.7),
    "cold": dataclasses.replace(OFF, temperature=0.3),
    "very cold": dataclasses.replace(OFF, temperature=0.01),
    "top-k 1": dataclasses.replace(OFF, top_k=1),
    "top-k 40": dataclasses.replace(OFF, top_k=40),
    "top-k 200": dataclasses.replace(OFF, top_k=200),
    "top-k beyond": dataclasses.replace(OFF, top_k=10**9),
    "negative top-k": dataclasses.replace(OFF, top_k=-1),
    "top-p 0.9": dataclasses.replace(OFF, top_p=0.9),
    "top-p 0.999": dataclasses.replace(OFF, top_p=0.999),
    "top-p 0": dataclasses.replace(OFF, top_p=0.0),
    "top-p negative": dataclasses.replace(OFF, top_p=-0.5),
    "min-p 0.1": dataclasses.replace(OFF, min_p=0.1),
    "min-p 1e-4": dataclasses.replace(OFF, min_p=1e-4),
    "min-p 1": dataclasses.replace(OFF, min_p=1.0),
    "min-p above 1": dataclasses.replace(OFF, min_p=2.0),
    "top-p and min-p": dataclasses.replace(OFF, top_p=0.8, min_p=0.02),
    "top-k and typical": dataclasses.replace(OFF, top_k=50, typical_p=0.7),
    "all": ref.Chain(temperature=0.7, top_k=60, typical_p=0.95, top_p=0.9, min_p=0.01),
    "top-n-sigma 1": dataclasses.replace(OFF, top_n_sigma=1.0),
    "top-n-sigma 3 and top-k": dataclasses.replace(OFF, top_n_sigma=3.0, top_k=20),
    "XTC": dataclasses.replace(OFF, xtc_probability=0.5, xtc_threshold=0.02),
    "XTC always": dataclasses.replace(OFF, xtc_probability=1.0, xtc_threshold=0.05, temperature=0.6),
    "XTC of few": ref.Chain(xtc_probability=0.3, xtc_threshold=0.1),
    "XTC of nobody": ref.Chain(xtc_probability=1.0, xtc_threshold=0.51),
    "dynamic temperature": dataclasses.replace(OFF, dynatemp_range=0.7),
    "dynamic from 0": dataclasses.replace(OFF, top_k=30, temperature=0.5, dynatemp_range=0.6, dynatemp_exponent=1.7),
    "dynamic and XTC": dataclasses.replace(OFF, dynatemp_range=0.5, xtc_probability=0.4, xtc_threshold=0.02),
    "llama-server": ref.Chain(top_n_sigma=2.0, xtc_probability=0.5, xtc_threshold=0.05, dynatemp_range=0.3),
}
PENALTIES: dict[str, dict[str, Any]] = {
    "none": {},
    "repeat": {"repeat_penalty": 1.3},
    "below 1": {"repeat_penalty": 0.7},
    "frequency": {"frequency_penalty": 0.4},
    "presence": {"presence_penalty": 0.6},
    "all": {"repeat_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": -0.3},
    "short window": {"repeat_penalty": 1.5, "penalty_last_n": 3},
    "no window": {"repeat_penalty": 1.5, "penalty_last_n": 0},
}


@pytest.mark.sampled(120)
@pytest.mark.parametrize("penalties", PENALTIES)
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("n_vocab", [300, 5000])
def test_grid(n_vocab: int, chain: str, penalties: str) -> None:
    params = dataclasses.replace(CHAINS[chain], **PENALTIES[penalties])
    rng = np.random.default_rng(n_vocab)
    compared = 0
    for _ in range(4):
        logits = (3.0 * rng.standard_normal(n_vocab)).astype(np.float32)
        recent = [int(token) for token in np.argsort(-logits)[[0, 2, 0, 5, 1, 0, 3, 2]]]
        compared += assert_all_agree(logits, params, recent)
    assert compared, "every case was too close to call: choose other numbers"


@pytest.mark.sampled(16)
@pytest.mark.parametrize("chain", [name for name in CHAINS if name != "top-k beyond"])
@pytest.mark.parametrize("n_vocab", [32_000, 151_936])
def test_large_vocabularies(n_vocab: int, chain: str) -> None:
    rng = np.random.default_rng(n_vocab)
    logits = (2.5 * rng.standard_normal(n_vocab)).astype(np.float32)
    logits[rng.integers(n_vocab, size=30)] += 9.0  # a head, as real models have
    recent = [int(token) for token in np.argsort(-logits)[:5]]
    params = dataclasses.replace(CHAINS[chain], repeat_penalty=1.05, logit_bias={int(np.argmax(logits)): -2.0})
    assert assert_all_agree(logits, params, recent)


@pytest.mark.parametrize("typical_p", [0.2, 0.5, 0.9])
def test_typical_over_a_whole_vocabulary(typical_p: float) -> None:
    """Neighbours in typicality are closer than llama.cpp's rounding here, so compare the mass, not each token."""
    rng = np.random.default_rng(3)
    for n_vocab in (300, 32_000):
        logits = (2.5 * rng.standard_normal(n_vocab)).astype(np.float32)
        params = dataclasses.replace(OFF, typical_p=typical_p)
        ours = specllama_probs(logits, params, [])
        assert np.abs(ours - ref.sampler_chain(logits, params).probs).sum() < 2e-3
        assert np.abs(ours - llama_cpp_probs(logits, params, [])).sum() < 2e-2


@pytest.mark.parametrize("chain", CHAINS)
def test_logits_of_a_model(make_base: MakeBase, chain: str) -> None:
    llm = make_base()
    tokens = llm.tokenize(b"the cat sat on the dog and")
    llm.eval(tokens)
    pointer = llama_cpp.llama_get_logits_ith(llm.ctx, -1)
    logits = np.ctypeslib.as_array(pointer, shape=(llm.n_vocab(),)).copy()
    compared = 0
    for bias in ({}, {int(np.argmax(logits)): float("-inf")}, {int(np.argmin(logits)): 12.0, 7: -1.0}):
        params = dataclasses.replace(CHAINS[chain], logit_bias=bias)
        if params.typical_p < 1 and any(np.isinf(b) for b in bias.values()) and params.top_k <= 0:
            continue  # llama.cpp computes 0 * log 0 here
        compared += assert_all_agree(logits, params, tokens[-4:])
    assert compared


@pytest.mark.parametrize("chain", [name for name in CHAINS if "typical" not in name and name != "all"])
def test_ties(chain: str) -> None:
    """Logits on a coarse grid: equal ones meet at every cut."""
    rng = np.random.default_rng(11)
    compared = 0
    for n_vocab in (40, 300, 3000):
        logits = np.round(2.0 * rng.standard_normal(n_vocab)).astype(np.float32)
        compared += assert_all_agree(logits, CHAINS[chain])
    assert compared
    logits[:] = 1.0
    if CHAINS[chain].top_p == 1:  # with equal logits, cumulated sums may meet top_p exactly
        assert assert_all_agree(logits, CHAINS[chain])


def test_of_equal_logits_the_lowest_ids_are_kept() -> None:
    """A rule of ours, so that p, q and greedy choices never depend on an algorithm's whim."""
    logits = np.zeros(5000, np.float32)
    logits[[17, 4000]] = 1.0
    greedy = _core.distribution(logits, _core.SamplerParams(temperature=0.0), [])
    assert greedy.ids.tolist() == [17]
    assert greedy.probs.tolist() == [1.0]
    top = _core.distribution(logits, _core.SamplerParams(top_k=4, top_p=1.0, min_p=0.0, temperature=1.0), [])
    assert top.ids.tolist() == [17, 4000, 0, 1]


@pytest.mark.parametrize("n_vocab", [1, 300, 151_936])
def test_logprobs(n_vocab: int) -> None:
    logits = (np.random.default_rng(0).integers(0, 3000, n_vocab) / 100).astype(np.float32)  # many are equal
    ranked = np.lexsort((np.arange(n_vocab), -logits))
    expected = logits.astype(np.float64) - np.logaddexp.reduce(logits.astype(np.float64))
    for num_top in (0, 1, 10, n_vocab - 1, n_vocab, n_vocab + 1):
        token = (7 * num_top) % n_vocab
        found = _core.logprobs(logits, token, num_top)
        assert found.logprob == pytest.approx(expected[token], abs=1e-6)
        assert list(found.top) == ranked[:num_top].tolist()
        assert np.allclose(list(found.top.values()), expected[list(found.top)], rtol=0.0, atol=1e-6)
    with pytest.raises(ValueError, match=r"a vector \[n_vocab\]"):
        _core.logprobs(logits.reshape(1, -1), 0, 1)
    with pytest.raises(ValueError, match=f"token {n_vocab} is out of range: .* the tokens 0 to {n_vocab - 1}"):
        _core.logprobs(logits, n_vocab, 1)


def test_logprobs_of_banned_tokens() -> None:
    logits = np.array([-np.inf, 1.0, -np.inf, 1.0], np.float32)
    found = _core.logprobs(logits, 0, 4)
    assert found.logprob == -np.inf
    assert found.top == pytest.approx({1: -np.log(2), 3: -np.log(2)})


def test_banned_tokens_get_nothing_and_the_last_one_left_gets_all() -> None:
    logits = np.arange(10, dtype=np.float32)
    for chain in CHAINS.values():
        banned = {token: float("-inf") for token in range(10) if token != 4}
        probs = specllama_probs(logits, dataclasses.replace(chain, logit_bias=banned), [])
        assert probs[4] == 1.0
        assert probs.sum() == 1.0


@pytest.mark.parametrize("chain", CHAINS)
def test_a_vocabulary_without_a_possible_token_is_an_error(chain: str) -> None:
    logits = np.zeros(10, np.float32)
    banned = {token: float("-inf") for token in range(10)}
    params = dataclasses.replace(CHAINS[chain], logit_bias=banned)
    with pytest.raises(RuntimeError, match="no token can be sampled"):
        specllama_probs(logits, params, [])
    with pytest.raises(RuntimeError, match="no token can be sampled"):
        specllama_probs(np.full(10, np.nan, np.float32), CHAINS[chain], [])


@pytest.mark.parametrize("chain", CHAINS)
def test_extreme_logits_stay_finite(chain: str) -> None:
    for values in ([1e30, -1e30, 0.0, 5.0], [-1e30, -1e30, -1e30, -1e30], [88.0, -88.0, 200.0, -200.0]):
        probs = specllama_probs(np.array(values, np.float32), CHAINS[chain], [])
        assert np.all(np.isfinite(probs))
        assert probs[int(np.argmax(values))] > 0 or CHAINS[chain].xtc_probability == 1


def test_a_bias_outside_the_vocabulary_changes_nothing_inside() -> None:
    """The draft's vocabulary may be shorter than the target's, for whose ids biases are given."""
    logits = np.arange(10, dtype=np.float32)
    assert np.array_equal(
        specllama_probs(logits, dataclasses.replace(OFF, logit_bias={10: 3.0, 99: 1.0}), [50]),
        specllama_probs(logits, OFF, []),
    )


@pytest.mark.parametrize("name", ["repeat_penalty", "frequency_penalty", "presence_penalty"])
def test_penalties_see_the_tail_of_what_was_generated(name: str) -> None:
    logits = np.linspace(-2, 2, 20).astype(np.float32)
    chain = dataclasses.replace(OFF, penalty_last_n=4, **{name: 1.7})
    tail = [3, 19, 19, 5]
    assert np.array_equal(
        specllama_probs(logits, chain, [0, 1, 2, *tail]), specllama_probs(logits, dataclasses.replace(chain), tail)
    )
    assert not np.array_equal(specllama_probs(logits, chain, tail), specllama_probs(logits, OFF, tail))


def floats(low: float, high: float) -> st.SearchStrategy[float]:
    """In single precision, as llama.cpp has them: what is smaller than its smallest number is 0, and switches off."""
    return st.floats(low, high, allow_nan=False).map(lambda value: float(np.float32(value)))


chains = st.builds(
    ref.Chain,
    temperature=st.one_of(st.sampled_from([0.0, -1.0, 1.0, 0.8]), floats(0.05, 3.0)),
    top_k=st.one_of(st.sampled_from([0, -1, 1, 40]), st.integers(1, 400)),
    top_p=st.one_of(st.just(1.0), floats(0.0, 1.0)),
    min_p=st.one_of(st.just(0.0), floats(0.0, 1.0)),
    typical_p=st.one_of(st.just(1.0), floats(0.0, 1.0)),
    repeat_penalty=st.one_of(st.just(1.0), floats(0.5, 2.0)),
    frequency_penalty=st.one_of(st.just(0.0), floats(-1.0, 1.0)),
    presence_penalty=st.one_of(st.just(0.0), floats(-1.0, 1.0)),
    penalty_last_n=st.integers(0, 8),
    top_n_sigma=st.one_of(st.just(-1.0), floats(0.1, 4.0)),
    xtc_probability=st.one_of(st.sampled_from([0.0, 1.0]), floats(0.01, 1.0)),
    xtc_threshold=floats(0.001, 0.6),
    dynatemp_range=st.one_of(st.just(0.0), floats(0.1, 2.0)),
    dynatemp_exponent=floats(0.0, 3.0),
    logit_bias=st.dictionaries(st.integers(0, 49), floats(-8.0, 8.0), max_size=4),
)


@hypothesis.settings(max_examples=400, deadline=None, derandomize=True)
@hypothesis.given(
    chain=chains,
    seed=st.integers(0, 10_000),
    n_vocab=st.integers(50, 400),
    spread=st.sampled_from([0.3, 1.0, 3.0, 8.0]),
    recent=st.lists(st.integers(0, 49), max_size=12),
    banned=st.integers(0, 20),
)
def test_any_chain(chain: ref.Chain, seed: int, n_vocab: int, spread: float, recent: list[int], banned: int) -> None:
    logits = (spread * np.random.default_rng(seed).standard_normal(n_vocab)).astype(np.float32)
    if chain.typical_p < 1:  # llama.cpp's entropy is NaN where a token is banned or ruled out
        chain = dataclasses.replace(chain, top_n_sigma=0.0)
    else:
        bias = {**chain.logit_bias, **dict.fromkeys(range(20, 20 + banned), float("-inf"))}
        chain = dataclasses.replace(chain, logit_bias=bias)
    hypothesis.assume(assert_all_agree(logits, chain, recent))


@pytest.mark.parametrize("top_k", [0, 40])
def test_of_two_tokens_both_lie_within_two_deviations(top_k: int) -> None:
    """Exactly: rounding must not decide, or a text would depend on how its logits were computed."""
    params = _core.SamplerParams(temperature=1.0, top_k=top_k, top_p=1.0, min_p=0.0, top_n_sigma=2.0)
    rng = np.random.default_rng(8)
    for _ in range(500):
        logits = np.full(50, -np.inf, np.float32)
        logits[[7, 30]] = rng.standard_normal(2) * rng.choice([1e-3, 1.0, 30.0])
        assert np.count_nonzero(_core.distribution(logits, params, []).probs) == 2


def test_sampling_inverts_the_cumulated_probabilities() -> None:
    dist = _core.Distribution([7, 3, 9], [0.5, 0.3, 0.2])
    edge: Callable[[float], float] = lambda u: float(np.nextafter(u, 0))  # noqa: E731
    expected = [(0.0, 7), (edge(0.5), 7), (0.5, 3), (edge(0.8), 3), (0.8, 9), (edge(1.0), 9)]
    assert [(u, _test.sample(dist, u)) for u, _ in expected] == expected


def test_sampling_never_yields_a_token_without_probability() -> None:
    dense = _core.distribution(
        np.array([-np.inf, 0, -np.inf, 0, -np.inf], np.float32),
        _core.SamplerParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0),
        [],
    )
    for u in (0.0, 0.49, 0.5, 0.999999, float(np.nextafter(1.0, 0))):
        assert _test.sample(dense, u) == (1 if u < 0.5 else 3)


def test_samples_have_the_distribution() -> None:
    logits = np.random.default_rng(5).standard_normal(12).astype(np.float32)
    for chain in (OFF, ref.Chain(top_k=5)):
        params = _core.SamplerParams(**{k: v for k, v in dataclasses.asdict(chain).items() if k != "logit_bias"})
        dist = _core.distribution(logits, params, [])
        grid = (np.arange(20_000) + 0.5) / 20_000
        counts = np.bincount([_test.sample(dist, u) for u in grid], minlength=12)
        assert counts / 20_000 == pytest.approx(specllama_probs(logits, chain, []), abs=1e-4)
