"""The C++ rules: equal to reference.py's, exact by enumeration, and deciding at exactly the right thresholds."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import reference as ref
import scipy.stats
from random_models import PAIRS, VOCAB
from structs import values

from specllama import _core
from specllama import _core_test as _test

FORMS = ("sparse", "dense")


def distribution(p: ref.Array, form: str) -> _core.Distribution:
    """A dense array in one of the two forms that the C++ rules see."""
    if form == "dense":
        return _core.Distribution([], p.tolist())
    order = np.argsort(-p, kind="stable")
    order = order[p[order] > 0]
    return _core.Distribution(order.tolist(), p[order].tolist())


def dense(dist: _core.Distribution) -> ref.Array:
    """The way back."""
    if dist.dense:
        return np.asarray(dist.probs)
    p = np.zeros(VOCAB)
    p[dist.ids] = dist.probs
    return p


class Round:
    """One drafted block with its distributions, in NumPy (p, q) and for the core (core_p, core_q)."""

    def __init__(self, pair: str, block: Sequence[int], forms: tuple[str, str] = ("sparse", "sparse")) -> None:
        target, draft = PAIRS[pair]
        self.draft = list(block)
        self.p = [target(tuple(block[:i])) for i in range(len(block) + 1)]
        self.q = [draft(tuple(block[:i])) for i in range(len(block))]
        self.core_p = [distribution(p, forms[0]) for p in self.p]
        self.core_q = [distribution(q, forms[1]) for q in self.q]


def rounds(pair: str, gamma: int, forms: tuple[str, str] = ("sparse", "sparse")) -> list[Round]:
    """Every block that the draft can draw."""
    draft = PAIRS[pair][1]
    blocks = ref.sequences(VOCAB, gamma)
    return [Round(pair, block, forms) for block in blocks if ref.sequence_probability(draft, block) > 0]


@pytest.mark.parametrize("forms", list(itertools.product(FORMS, FORMS)))
@pytest.mark.parametrize("pair", PAIRS)
def test_acceptance_and_residuals_equal_the_reference(pair: str, forms: tuple[str, str]) -> None:
    for r in rounds(pair, 3, forms):
        a = _test.rejection_acceptance(r.core_p, r.core_q, r.draft)
        assert a == pytest.approx(ref.rejection_acceptance(r.p, r.q, r.draft), abs=1e-14)
        h, w = values(_test.block_acceptance(r.core_p, r.core_q, r.draft))
        expected_h, expected_w = ref.block_weights(r.p, r.q, r.draft)
        assert h == pytest.approx(expected_h, abs=1e-12)
        assert w == pytest.approx(expected_w, abs=1e-14)
        for p, q, core_p, core_q, weight in zip(r.p, r.q, r.core_p, r.core_q, [1.0, *w[1:]], strict=False):
            expected = ref.residual(p, q, weight)
            if expected.sum() > 0:
                assert dense(_test.residual(core_p, core_q, weight)) == pytest.approx(expected, abs=1e-12)


def core_rejection(p: Sequence[ref.Array], q: Sequence[ref.Array], draft: Sequence[int]) -> list[ref.Outcome]:
    """The outcomes of a round, computed from what the core says."""
    core_p, core_q = [distribution(x, "sparse") for x in p], [distribution(x, "sparse") for x in q]
    outcomes, reached = [], 1.0
    for i, a in enumerate(_test.rejection_acceptance(core_p, core_q, list(draft))):
        outcomes.append(ref.Outcome(i, reached * (1 - a), dense(_test.residual(core_p[i], core_q[i], 1.0))))
        reached *= a
    return [*outcomes, ref.Outcome(len(draft), reached, p[len(draft)])]


def core_block(p: Sequence[ref.Array], q: Sequence[ref.Array], draft: Sequence[int]) -> list[ref.Outcome]:
    """The same for block verification."""
    core_p, core_q = [distribution(x, "sparse") for x in p], [distribution(x, "sparse") for x in q]
    h, w = values(_test.block_acceptance(core_p, core_q, list(draft)))
    outcomes, none_above = [], 1.0
    for i in range(len(draft), -1, -1):
        passes = h[i - 1] if i > 0 else 1.0
        next_token = p[i] if i == len(draft) else dense(_test.residual(core_p[i], core_q[i], w[i]))
        outcomes.append(ref.Outcome(i, none_above * passes, next_token))
        none_above *= 1 - passes
    return outcomes


@pytest.mark.parametrize("gamma", [1, 2, 3, 4])
@pytest.mark.parametrize("pair", PAIRS)
def test_exact_by_enumeration(pair: str, gamma: int) -> None:
    target, draft = PAIRS[pair]
    accepted = []
    for rule in (core_rejection, core_block):
        result, expected_length = ref.round_distribution(target, draft, VOCAB, gamma, rule)
        assert ref.largest_error(target, result, VOCAB, gamma + 1) < 1e-9
        accepted.append(expected_length)
    assert accepted[1] >= accepted[0] - 1e-9


def below(x: float) -> float:
    return float(np.nextafter(x, -1))


def coins(accept: bool, threshold: float) -> list[float]:
    """The uniform in [0, 1) closest to a threshold, on its accepting side (below) or the other; [] if there is none."""
    if accept:
        return [below(threshold)] if threshold > 0 else []
    return [threshold] if threshold < 1 else []


@pytest.mark.parametrize("pair", PAIRS)
def test_rejection_decides_at_its_thresholds(pair: str) -> None:
    decided = set()
    for r in rounds(pair, 3):
        a = _test.rejection_acceptance(r.core_p, r.core_q, r.draft)
        for n in range(4):
            sides = [coins(True, x) for x in a[:n]] + ([coins(False, a[n])] if n < 3 else [])
            # What comes behind the rejected one must not matter.
            for pattern in itertools.product(*sides, *[[0.0, 0.999]] * (3 - len(sides))):
                accepted, token = values(_test.verify_rejection(r.core_p, r.core_q, r.draft, list(pattern), 0.5))
                assert accepted == n
                expected = _test.residual(r.core_p[n], r.core_q[n], 1.0) if n < 3 else r.core_p[3]
                assert token == _test.sample(expected, 0.5)
                decided.add(n)
    assert decided


@pytest.mark.parametrize("pair", PAIRS)
def test_block_decides_at_its_thresholds(pair: str) -> None:
    decided = set()
    for r in rounds(pair, 3):
        h, w = values(_test.block_acceptance(r.core_p, r.core_q, r.draft))
        for passes in itertools.product([True, False], repeat=3):
            for pattern in itertools.product(*[coins(ok, x) for ok, x in zip(passes, h, strict=True)]):
                n = max((i + 1 for i, ok in enumerate(passes) if ok), default=0)
                accepted, token = values(_test.verify_block(r.core_p, r.core_q, r.draft, list(pattern), 0.5))
                assert accepted == n
                expected = _test.residual(r.core_p[n], r.core_q[n], w[n]) if n < 3 else r.core_p[3]
                assert token == _test.sample(expected, 0.5)
                decided.add(n)
    assert decided


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_the_next_token_is_the_inverse_of_the_cumulated_residual(rule: str) -> None:
    verify = {"rejection": _test.verify_rejection, "block": _test.verify_block}[rule]
    seen = set()
    for r in rounds("random", 2):
        _, w = values(_test.block_acceptance(r.core_p, r.core_q, r.draft))
        for accept in ([0.9999, 0.9999], [0.0, 0.9999], [0.0, 0.0]):
            n = verify(r.core_p, r.core_q, r.draft, accept, 0.0).num_accepted
            weight = w[n] if rule == "block" else 1.0
            source = r.core_p[2] if n == 2 else _test.residual(r.core_p[n], r.core_q[n], weight)
            edges = np.cumsum(source.probs)
            for i, token in enumerate(source.ids):
                inside = [edges[i] - 1e-9, edges[i] - source.probs[i] + 1e-9]
                assert [verify(r.core_p, r.core_q, r.draft, accept, u).next for u in inside] == [token] * 2
                seen.add((n, int(token)))
    assert len({n for n, _ in seen}) > 1


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_a_drafted_token_without_probability_is_never_accepted(rule: str) -> None:
    verify = {"rejection": _test.verify_rejection, "block": _test.verify_block}[rule]
    p = [_core.Distribution([0], [1.0])] * 2
    q = [_core.Distribution([1], [1.0])]
    assert values(verify(p, q, [1], [0.0], 0.7)) == (0, 0)
    # A draft whose own distribution lacks the token cannot have drawn it.
    assert verify(p, q, [0], [0.0], 0.7).next == 0


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_no_drafts_means_a_plain_sample(rule: str) -> None:
    verify = {"rejection": _test.verify_rejection, "block": _test.verify_block}[rule]
    p = [_core.Distribution([4, 2], [0.6, 0.4])]
    assert values(verify(p, [], [], [], 0.5)) == (0, 4)
    assert values(verify(p, [], [], [], 0.7)) == (0, 2)


@pytest.mark.parametrize("pair", PAIRS)
def test_coupled_equals_the_target_alone_for_every_draft(pair: str) -> None:
    target, _ = PAIRS[pair]
    for seed in range(40):
        plain: tuple[int, ...] = ()
        for i in range(4):
            plain += (_core.gumbel_argmax(distribution(target(plain), "sparse"), seed, 100 + i),)
        for block in ref.sequences(VOCAB, 3):
            for form in FORMS:
                p = [distribution(target(block[:i]), form) for i in range(4)]
                accepted, token = values(_test.verify_coupled(p, list(block), seed, 100))
                assert (*block[:accepted], token) == plain[: accepted + 1]
                assert accepted == next((i for i in range(3) if block[i] != plain[i]), 3)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n_vocab", [2, 30, 5000])
def test_gumbel_argmax_equals_its_definition(n_vocab: int, form: str) -> None:
    """The pruned search finds what looking at every token finds."""
    rng = np.random.default_rng(n_vocab)
    for trial in range(20):
        p = ref.softmax((0.5 + trial % 4) * rng.standard_normal(n_vocab))
        if trial % 3 == 0 and n_vocab > 2:
            p[rng.integers(n_vocab, size=n_vocab // 2)] = 0.0
            p /= p.sum()
        noise = np.array([_test.gumbel(trial, 9, token) for token in range(n_vocab)])
        assert _core.gumbel_argmax(distribution(p, form), trial, 9) == ref.gumbel_argmax(p, noise)


@pytest.mark.parametrize("form", FORMS)
def test_gumbel_argmax_samples_from_the_distribution(form: str) -> None:
    p = np.array([0.5, 0.3, 0.15, 0.05])
    dist = distribution(p, form)
    over_positions = [_core.gumbel_argmax(dist, 1, i) for i in range(20_000)]
    over_seeds = [_core.gumbel_argmax(dist, i, 1) for i in range(20_000)]
    for tokens in (over_positions, over_seeds):
        assert scipy.stats.chisquare(np.bincount(tokens, minlength=4), 20_000 * p).pvalue > 1e-4
    pairs = np.array(over_positions).reshape(-1, 2)
    table, _, _ = np.histogram2d(pairs[:, 0], pairs[:, 1], bins=4)
    assert scipy.stats.chi2_contingency(table).pvalue > 1e-4


def test_coupled_acceptance_lies_where_the_theory_says() -> None:
    """P(two coupled samples agree) is at least (1 - TV) / (1 + TV) (Daliri et al.), and at most sum min(p, q)."""
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.3, 0.3, 0.4])
    overlap = np.minimum(p, q).sum()
    core_p, core_q = distribution(p, "sparse"), distribution(q, "sparse")
    n = 20_000
    accepted = 0
    for position in range(n):
        draft = _core.gumbel_argmax(core_q, 5, position)
        accepted += _test.verify_coupled([core_p, core_p], [draft], 5, position).num_accepted
    assert overlap / (2 - overlap) - 0.015 < accepted / n < overlap + 0.015


@pytest.mark.statistics
@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_sampled_rounds_have_the_distribution_of_the_target(rule: str) -> None:
    """With the core's own uniforms from end to end: first token and accepted length, against the enumeration."""
    verify = {"rejection": _test.verify_rejection, "block": _test.verify_block}[rule]
    outcomes = {"rejection": ref.rejection_outcomes, "block": ref.block_outcomes}[rule]
    target, draft = PAIRS["random"]
    gamma, n = 3, 8_000
    _, expected_length = ref.round_distribution(target, draft, VOCAB, gamma, outcomes)
    first, length = np.zeros(VOCAB), 0
    for i in range(n):
        block: tuple[int, ...] = ()
        for j in range(gamma):
            block += (_test.sample(distribution(draft(block), "sparse"), _test.uniform(1, 2, i, j)),)
        p = [distribution(target(block[:j]), "sparse") for j in range(gamma + 1)]
        q = [distribution(draft(block[:j]), "sparse") for j in range(gamma)]
        accept = [_test.uniform(1, 3, i, j) for j in range(gamma)]
        accepted, token = values(verify(p, q, list(block), accept, _test.uniform(1, 4, i, 0)))
        first[(*block[:accepted], token)[0]] += 1
        length += accepted
    assert scipy.stats.chisquare(first, n * target(())).pvalue > 1e-4
    assert length / n == pytest.approx(expected_length, abs=0.06)


P, Q = _core.Distribution([0, 1], [0.5, 0.5]), _core.Distribution([1, 0], [0.6, 0.4])


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize(
    ("p", "q", "draft", "accept"),
    [
        ([P], [Q], [0], [0.5]),  # no p behind the last draft
        ([P, P], [], [0], [0.5]),
        ([P, P], [Q, Q], [0], [0.5]),
        ([P, P], [Q], [0], []),
        ([], [], [], []),
    ],
)
def test_lengths_that_do_not_fit_are_refused(
    rule: str, p: list[_core.Distribution], q: list[_core.Distribution], draft: list[int], accept: list[float]
) -> None:
    verify = {"rejection": _test.verify_rejection, "block": _test.verify_block}[rule]
    with pytest.raises(ValueError, match="gamma"):
        verify(p, q, draft, accept, 0.5)


def test_lengths_that_do_not_fit_are_refused_elsewhere() -> None:
    with pytest.raises(ValueError, match="gamma"):
        _test.verify_coupled([P], [0], 1, 0)
    with pytest.raises(ValueError, match="gamma"):
        _test.block_acceptance([P], [Q], [0])
    with pytest.raises(ValueError, match="gamma"):
        _test.rejection_acceptance([P, P], [], [0])


@pytest.mark.parametrize(("ids", "probs"), [([0, 1], [1.0]), ([0], [0.5, 0.5]), ([], [])])
def test_distributions_need_as_many_ids_as_probabilities(ids: list[int], probs: list[float]) -> None:
    with pytest.raises(ValueError, match="ids"):
        _core.Distribution(ids, probs)


def test_rules_have_one_table() -> None:
    """What Python, the commands and the docs say of them comes from it, or is compared with it."""
    rules = {rule.name: rule for rule in _core.rules()}
    assert list(rules) == ["rejection", "block", "coupled"]
    assert [name for name, rule in rules.items() if rule.independent_of_draft] == ["coupled"]
    assert [name for name, rule in rules.items() if not rule.decides_in_steps] == ["block"]
    assert all(rule.summary and name in repr(rule) for name, rule in rules.items())
    page = (Path(__file__).parents[2] / "docs" / "exactness.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|", page.split("## The rules")[1].split("\n## ")[0], re.M)
    assert rows == ["verify", *rules, "auto"], "its head and its rows"
