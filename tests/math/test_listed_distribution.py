"""The sampler chain over the logits of listed tokens: as if there were no others, whatever stands where these would."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import reference as ref
from test_engine_statistics import CHAINS, OFF

from specllama import _core
from specllama import _core_test as _test

N_VOCAB = 150
LISTED = [5, 40, 100, 149]
"""With their groups: 16 + 16 + 16 + 6 tokens."""
RECENT = [3, 3, 40, 60, 101, 40, 3, 3]
CASES = {
    **CHAINS,
    "greedy": dataclasses.replace(OFF, temperature=0.0),
    "below 0": dataclasses.replace(OFF, temperature=-1.0),
    "typical": dataclasses.replace(OFF, typical_p=0.5),
    "typical of top-k": dataclasses.replace(OFF, typical_p=0.5, top_k=20),
    "min-p": dataclasses.replace(OFF, min_p=0.2),
    "DRY": OFF,
    "bias of others": dataclasses.replace(OFF, logit_bias={60: 50.0, 101: 2.0, 5: float("-inf")}),
}
MORE = {"DRY": {"dry_multiplier": 2.0, "dry_allowed_length": 1}}
"""Of the core's alone."""


def list_of(tokens: Sequence[int], n_vocab: int = N_VOCAB) -> _core.TokenList:
    return _core.TokenList(n_vocab, np.array(tokens, dtype=np.int32))


def tokens_of(listed: _core.TokenList) -> list[int]:
    return [token for token in range(N_VOCAB) if token // 16 in listed.groups]


def params_of(chain: ref.Chain, name: str = "") -> _core.SamplerParams:
    values = {f.name: getattr(chain, f.name) for f in dataclasses.fields(chain)}
    return _core.SamplerParams(**{**values, "logit_bias": dict(chain.logit_bias), **MORE.get(name, {})})


def dense(dist: _core.Distribution) -> ref.Array:
    probs = np.zeros(N_VOCAB)
    if dist.dense:
        assert len(dist.probs) <= N_VOCAB
        probs[: len(dist.probs)] = dist.probs
    else:
        assert np.all(np.diff(dist.probs) <= 0)
        probs[dist.ids] = dist.probs
    assert probs.sum() == pytest.approx(1.0, abs=1e-9)
    return probs


def logits_of(seed: int) -> npt.NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal(N_VOCAB) * 2.5).astype(np.float32)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("constrained", [False, True])
def test_it_is_that_of_a_vocabulary_without_the_others(name: str, seed: int, constrained: bool) -> None:
    """The same tokens by other numbers: they are all that there is."""
    listed = list_of(LISTED)
    chosen = tokens_of(listed)
    place = {token: i for i, token in enumerate(chosen)}
    chain, logits = CASES[name], logits_of(seed)
    # Tokens that the small vocabulary does not have are behind its end: no penalty falls on any.
    small = dataclasses.replace(
        chain, logit_bias={place.get(token, 1000 + token): bias for token, bias in chain.logit_bias.items()}
    )
    recent = [place.get(token, 1000 + token) for token in RECENT]

    def allows(_recent: list[int], candidates: list[int]) -> list[bool]:
        return [candidate % 3 != 0 for candidate in candidates]

    def allows_of_small(_recent: list[int], candidates: list[int]) -> list[bool]:
        return allows([], [chosen[candidate] for candidate in candidates])

    expected = _core.distribution(
        logits[chosen],
        params_of(small, name),
        recent,
        _test.CallbackConstraint(allows_of_small) if constrained else None,
    )
    for poison in (np.nan, np.inf, 1e30, -np.inf):
        row = np.full(N_VOCAB, poison, dtype=np.float32)
        row[chosen] = logits[chosen]
        constraint = _test.CallbackConstraint(allows) if constrained else None
        found = dense(_test.listed_distribution(row, listed, params_of(chain, name), RECENT, constraint))
        wanted = np.zeros(N_VOCAB)
        if expected.dense:
            wanted[chosen] = expected.probs
        else:
            wanted[[chosen[token] for token in expected.ids]] = expected.probs
        assert np.array_equal(found, wanted)
        if constrained:
            assert found[::3].sum() == 0


def test_a_list_of_all_tokens_changes_nothing() -> None:
    everything = list_of(range(N_VOCAB))
    for name, chain in CASES.items():
        logits = logits_of(9)
        expected = dense(_core.distribution(logits, params_of(chain, name), RECENT))
        found = dense(_test.listed_distribution(logits, everything, params_of(chain, name), RECENT))
        assert np.array_equal(found, expected), name


def test_tokens_that_only_the_draft_has_are_left_out() -> None:
    """The target's vocabulary is shorter, and ends within a group."""
    found = dense(_test.listed_distribution(logits_of(1)[:105], list_of(LISTED), params_of(OFF)))
    assert found[96:105].min() > 0
    assert found[105:].sum() == 0


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_left_where_nothing_listed_is_allowed(name: str) -> None:
    nothing = _test.CallbackConstraint(lambda _recent, candidates: [False] * len(candidates))
    with pytest.raises(RuntimeError, match="no token can be sampled"):
        _test.listed_distribution(logits_of(2), list_of(LISTED), params_of(CASES[name], name), [], nothing)
    with pytest.raises(RuntimeError, match="no token can be sampled"):
        _test.listed_distribution(logits_of(2), list_of([]), params_of(CASES[name], name))


@pytest.mark.statistics
@pytest.mark.sampled(2)
@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("name", ["T=1", "T=0.7 top-k 4", "T=1.5 top-p 0.8", "bias of others"])
def test_rules_are_exact_with_it(rule: str, name: str) -> None:
    """Every draft and every outcome is enumerated: p is over all tokens, q over some."""
    n_vocab, some = 20, list_of([17], 20)  # four tokens of twenty
    chain = dataclasses.replace(CASES[name], logit_bias={18: 1.0})
    params = params_of(chain)

    def logits(prefix: tuple[int, ...], seed: int) -> npt.NDArray[np.float32]:
        rng = np.random.default_rng([seed, *prefix])
        row = (2.0 * rng.standard_normal(n_vocab)).astype(np.float32)
        row[:15] -= 3.0  # the text is mostly of listed tokens
        return row

    def spread(dist: _core.Distribution) -> ref.Array:
        probs = np.zeros(n_vocab)
        probs[: len(dist.probs)] = dist.probs if dist.dense else 0.0
        if not dist.dense:
            probs[dist.ids] = dist.probs
        return probs

    def target(prefix: tuple[int, ...]) -> ref.Array:
        return spread(_core.distribution(logits(prefix, 1), params, list(prefix)))

    def draft(prefix: tuple[int, ...]) -> ref.Array:
        return spread(_test.listed_distribution(logits(prefix, 2), some, params, list(prefix)))

    assert draft(())[:16].sum() == 0
    outcomes = {"rejection": ref.rejection_outcomes, "block": ref.block_outcomes}[rule]
    result, accepted = ref.round_distribution(target, draft, n_vocab, 2, outcomes)
    assert accepted > 0.2
    assert ref.largest_error(target, result, n_vocab, 3) < 1e-12
