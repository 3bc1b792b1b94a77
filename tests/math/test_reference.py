"""The rules of reference.py are exact: every draft block and every outcome is enumerated, and nothing is sampled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import reference as ref
from random_models import PAIRS, VOCAB

RULES: dict[str, ref.Rule] = {"rejection": ref.rejection_outcomes, "block": ref.block_outcomes}


@pytest.mark.parametrize("gamma", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("pair", PAIRS)
def test_output_has_the_distribution_of_the_target(pair: str, rule: str, gamma: int) -> None:
    target, draft = PAIRS[pair]
    result, _ = ref.round_distribution(target, draft, VOCAB, gamma, RULES[rule])
    assert ref.largest_error(target, result, VOCAB, gamma + 1) < 1e-12
    assert sum(result.values()) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("gamma", [1, 2, 3, 4])
@pytest.mark.parametrize("pair", PAIRS)
def test_block_accepts_at_least_as_many_as_rejection(pair: str, gamma: int) -> None:
    target, draft = PAIRS[pair]
    _, rejection = ref.round_distribution(target, draft, VOCAB, gamma, ref.rejection_outcomes)
    _, block = ref.round_distribution(target, draft, VOCAB, gamma, ref.block_outcomes)
    assert block >= rejection - 1e-12
    if pair == "random" and gamma > 1:
        assert block > rejection + 1e-4, "block verification should pay somewhere, or it is not block verification"
    if pair == "identical":
        assert rejection == pytest.approx(gamma)
        assert block == pytest.approx(gamma)
    if pair == "disjoint":
        assert block == 0.0


@pytest.mark.parametrize("rule", RULES)
def test_one_drafted_token_is_accepted_as_often_as_the_distributions_overlap(rule: str) -> None:
    target, draft = PAIRS["random"]
    _, accepted = ref.round_distribution(target, draft, VOCAB, 1, RULES[rule])
    assert accepted == pytest.approx(np.minimum(target(()), draft(())).sum(), abs=1e-12)


@pytest.mark.parametrize("pair", PAIRS)
def test_outcomes_of_a_block_sum_to_one(pair: str) -> None:
    target, draft = PAIRS[pair]
    for block in ref.sequences(VOCAB, 3):
        if ref.sequence_probability(draft, block) == 0.0:
            continue
        p = [target(block[:i]) for i in range(4)]
        q = [draft(block[:i]) for i in range(3)]
        for rule in RULES.values():
            outcomes = rule(p, q, block)
            assert sum(outcome.probability for outcome in outcomes) == pytest.approx(1.0)
            for outcome in outcomes:
                if outcome.probability > 1e-12:
                    assert outcome.next_token.sum() == pytest.approx(1.0)


def drop_unlikely(q: Sequence[ref.Array], block: Sequence[int]) -> int:
    """The broken rule of design section 8: leave a drafted token out because its own q is low."""
    return next((i for i, token in enumerate(block) if q[i][token] < 0.3), len(block))


def stop_after_unlikely(q: Sequence[ref.Array], block: Sequence[int]) -> int:
    """Its exact counterpart: stop drafting after such a token, which is kept."""
    return min(drop_unlikely(q, block) + 1, len(block))


@pytest.mark.parametrize("rule", RULES)
def test_dropping_a_drafted_token_by_its_own_probability_is_caught(rule: str) -> None:
    target, draft = PAIRS["random"]
    result, _ = ref.round_distribution(target, draft, VOCAB, 3, RULES[rule], stop=drop_unlikely)
    assert ref.largest_error(target, result, VOCAB, 4) > 1e-3


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("pair", PAIRS)
def test_stopping_after_a_drafted_token_is_exact(pair: str, rule: str) -> None:
    target, draft = PAIRS[pair]
    result, _ = ref.round_distribution(target, draft, VOCAB, 3, RULES[rule], stop=stop_after_unlikely)
    assert ref.largest_error(target, result, VOCAB, 4) < 1e-12


def test_correcting_from_the_target_instead_of_the_residual_is_caught() -> None:
    def wrong(p: Sequence[ref.Array], q: Sequence[ref.Array], draft: Sequence[int]) -> list[ref.Outcome]:
        right = ref.rejection_outcomes(p, q, draft)
        return [ref.Outcome(o.accepted, o.probability, p[o.accepted]) for o in right]

    target, draft = PAIRS["random"]
    result, _ = ref.round_distribution(target, draft, VOCAB, 2, wrong)
    assert ref.largest_error(target, result, VOCAB, 3) > 1e-3


def test_residual_by_rank_instead_of_token_id_is_caught() -> None:
    """What llama-speculative does: p and q sorted by probability and subtracted rank by rank."""

    def wrong(p: Sequence[ref.Array], q: Sequence[ref.Array], draft: Sequence[int]) -> list[ref.Outcome]:
        outcomes = ref.rejection_outcomes(p, q, draft)[:-1]
        corrected = []
        for i, outcome in enumerate(outcomes):
            order = np.argsort(-p[i])
            by_rank = np.zeros(VOCAB)
            by_rank[order] = np.maximum(0.0, p[i][order] - np.sort(q[i])[::-1])
            next_token = ref.norm(by_rank) if by_rank.sum() > 0 else p[i]
            corrected.append(ref.Outcome(i, outcome.probability, next_token))
        return [*corrected, ref.rejection_outcomes(p, q, draft)[-1]]

    target, draft = PAIRS["random"]
    result, _ = ref.round_distribution(target, draft, VOCAB, 2, wrong)
    assert ref.largest_error(target, result, VOCAB, 3) > 1e-3


@pytest.mark.parametrize("pair", PAIRS)
def test_coupled_text_does_not_depend_on_the_draft(pair: str) -> None:
    """For one table of noise, whatever was drafted, the emitted tokens are those of plain decoding."""
    target, _ = PAIRS[pair]
    noise = np.random.default_rng(0).gumbel(size=(4, VOCAB))
    plain: tuple[int, ...] = ()
    for i in range(4):
        plain += (ref.gumbel_argmax(target(plain), noise[i]),)
    for block in ref.sequences(VOCAB, 3):
        p = [target(block[:i]) for i in range(4)]
        accepted, token = ref.coupled(p, block, noise)
        assert (*block[:accepted], token) == plain[: accepted + 1]


def test_gumbel_argmax_samples_from_p() -> None:
    rng = np.random.default_rng(7)
    p = np.array([0.6, 0.3, 0.1])
    counts = np.bincount([ref.gumbel_argmax(p, g) for g in rng.gumbel(size=(20_000, VOCAB))], minlength=VOCAB)
    assert np.abs(counts / 20_000 - p).max() < 0.02


def test_chain_removes_nothing_when_everything_is_off() -> None:
    logits = np.random.default_rng(1).standard_normal(50).astype(np.float32)
    chain = ref.Chain(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    assert ref.sampler_chain(logits, chain).probs == pytest.approx(ref.softmax(logits.astype(np.float64)))


def test_chain_on_a_distribution_worked_out_by_hand() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.15, 0.1], dtype=np.float32))

    def probs(**kwargs: float) -> list[float]:
        off = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        return ref.sampler_chain(logits, ref.Chain(**{**off, **kwargs})).probs.tolist()  # type: ignore[arg-type]

    assert probs(top_k=2) == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert probs(top_p=0.7) == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert probs(top_p=0.8) == pytest.approx([0.5 / 0.9, 0.25 / 0.9, 0.15 / 0.9, 0])
    assert probs(min_p=0.25) == pytest.approx([0.5 / 0.9, 0.25 / 0.9, 0.15 / 0.9, 0])
    # Entropy 1.208 nats: surprises .69, 1.39, 1.90, 2.30 are off by .52, .18, .69, 1.09.
    assert probs(typical_p=0.2) == pytest.approx([0, 1, 0, 0])
    assert probs(typical_p=0.6) == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert probs(temperature=0.5) == pytest.approx(np.array([25, 6.25, 2.25, 1]) / 34.5)
    assert probs(temperature=0.0) == [1, 0, 0, 0]
