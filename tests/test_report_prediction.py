"""The arithmetic behind a report: rounds by what they drafted, and the speedup that their costs predict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import synthetic_bench as synthetic

from specllama.cost_curve import CostCurve
from specllama.evidence.bench.prediction import Prediction, predicted_speedup
from specllama.evidence.bench.rounds import PARTS, Rounds
from specllama.stats import Stats

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

TARGET = CostCurve("target", 128, {n: (0.100 + 0.010 * (n - 1),) for n in range(1, 10)})
DRAFT = CostCurve("draft", 128, {1: (0.020,)})


def stats(
    num_tokens: int, drafted: tuple[int, ...] = (), accepted: tuple[int, ...] = (), **more: Any
) -> dict[str, Any]:
    return Stats(
        num_tokens=num_tokens,
        num_drafts=max(drafted, default=0),
        num_draft_tokens=sum(drafted),
        num_accepted_tokens=sum(accepted),
        num_draft_tokens_per_pos=drafted,
        num_accepted_tokens_per_pos=accepted,
        **more,
    ).to_dict()


def test_rounds_are_counted_by_what_they_drafted() -> None:
    # 10 rounds drafted: 3 of them one token, 2 two, 5 three; 14 drafts were accepted, 6 tokens were plain rounds.
    rounds = Rounds.of([stats(30, (10, 7, 5), (8, 4, 2))])
    assert rounds.by_gamma == {0: 6, 1: 3, 2: 2, 3: 5}
    assert rounds.num_rounds == 16
    assert rounds.tokens_per_round == pytest.approx(30 / 16)
    assert rounds.acceptance_rate_per_pos == pytest.approx((0.8, 4 / 7, 0.4))


def test_rounds_of_several_generations() -> None:
    rounds = Rounds.of([stats(8, (2, 2), (2, 1)), stats(9, (3, 3, 3), (2, 2, 2)), stats(5)])
    assert rounds.num_tokens == 22
    assert rounds.by_gamma == {0: 3 + 5, 2: 2, 3: 3}
    assert rounds.num_draft_tokens_per_pos == (5, 5, 3)
    assert rounds.num_accepted_tokens_per_pos == (4, 3, 2)


def test_a_round_cut_by_a_stop_string_is_no_plain_one() -> None:
    assert Rounds.of([stats(5, (2, 2, 2), (2, 2, 2))]).by_gamma == {3: 2}


def test_seconds_by_part() -> None:
    one = stats(
        10,
        total_seconds=5.0,
        prompt_seconds=2.0,
        draft_seconds=0.5,
        verify_seconds=1.5,
        sample_seconds=0.25,
        rollback_seconds=0.125,
    )
    rounds = Rounds.of([one, one])
    assert tuple(rounds.seconds) == PARTS
    assert list(rounds.seconds.values()) == pytest.approx([1.0, 3.0, 0.5, 0.25, 1.25])


def test_rounds_of_a_real_generation(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good, num_draft_tokens=3)
    for max_tokens in (1, 2, 17, 40):
        llm.reset()
        llm.create_completion("the cat sat on", max_tokens=max_tokens, temperature=0.8, seed=5)
        found = llm.stats
        rounds = Rounds.of([found.to_dict()])
        assert sum(gamma * count for gamma, count in rounds.by_gamma.items()) == found.num_draft_tokens
        assert sum(count for gamma, count in rounds.by_gamma.items() if gamma) == found.num_drafts
        # Every round decodes its drafts and one token more; the prompt's last token is in the first one.
        decoded = sum((gamma + 1) * count for gamma, count in rounds.by_gamma.items())
        assert decoded == found.num_target_tokens_decoded - (found.num_prompt_tokens - 1)


def test_constant_gamma_is_the_formula() -> None:
    rounds = Rounds.of([stats(250, (100,) * 4, (60, 45, 30, 15))])
    # E = 2.5, gamma = 4, c = 0.2, v(5) = 1.4
    assert predicted_speedup(rounds, TARGET, DRAFT) == pytest.approx(2.5 / (4 * 0.2 + 1.4))


def test_flat_costs_give_the_improvement_factor_of_leviathan() -> None:
    alpha, gamma, c, num_rounds = 0.8, 5, 0.1, 10**6
    accepted = tuple(round(num_rounds * alpha**i) for i in range(1, gamma + 1))
    rounds = Rounds.of([stats(num_rounds + sum(accepted), (num_rounds,) * gamma, accepted)])
    flat = CostCurve("target", 0, dict.fromkeys(range(1, 8), (1.0,)))
    expected = (1 - alpha ** (gamma + 1)) / ((1 - alpha) * (gamma * c + 1))  # theorem 3.8
    assert predicted_speedup(rounds, flat, CostCurve("draft", 0, {1: (c,)})) == pytest.approx(expected, rel=1e-5)


def test_plain_decoding_is_predicted_to_be_itself() -> None:
    assert predicted_speedup(Rounds.of([stats(77)]), TARGET, DRAFT) == 1.0


def test_rounds_without_a_draft_cost_one() -> None:
    rounds = Rounds.of([stats(50 + 10 * 3, (10, 10), (10, 10))])  # 50 plain rounds, 10 of gamma 2 that give 3 each
    assert rounds.by_gamma == {0: 50, 2: 10}
    assert predicted_speedup(rounds, TARGET, DRAFT) == pytest.approx(80 / (50 + 10 * (0.4 + 1.2)))


def test_varying_gamma_costs_what_its_rounds_cost() -> None:
    # The mean gamma is 2, but T(3) is not the mean of T(2) and T(4) here.
    steep = CostCurve("target", 0, {1: (1.0,), 2: (1.0,), 3: (5.0,), 4: (2.0,)})
    rounds = Rounds.of([stats(40, (20, 10, 10), (10, 5, 5))])
    assert rounds.by_gamma == {1: 10, 3: 10}
    cost = (10 * (0.02 + 1.0) + 10 * (3 * 0.02 + 2.0)) / 20
    assert predicted_speedup(rounds, steep, DRAFT) == pytest.approx(2.0 / cost)


def test_sizes_between_those_measured_are_interpolated() -> None:
    sparse = CostCurve("target", 0, {1: (1.0,), 4: (1.6,)})
    rounds = Rounds.of([stats(20, (10,), (10,))])
    assert predicted_speedup(rounds, sparse, DRAFT) == pytest.approx(2.0 / (0.02 + 1.2))


def test_what_cannot_be_predicted() -> None:
    with pytest.raises(ValueError, match="nothing was generated"):
        predicted_speedup(Rounds.of([]), TARGET, DRAFT)
    with pytest.raises(ValueError, match=r"T\(10\) of the target lies outside the sizes measured: 1, 2, .*9"):
        predicted_speedup(Rounds.of([stats(20, (5,) * 9, (5, 5, 5, 0, 0, 0, 0, 0, 0))]), TARGET, DRAFT)


def test_points_of_a_benchmark() -> None:
    runs = synthetic.bench_runs(("plain", "block:4", "block:16"), ("code", "maths"), prompts=3)
    result = synthetic.bench_result(runs)
    prediction = Prediction.of(result)
    assert {mode: len(points) for mode, points in prediction.points.items()} == {"block:4": 6}
    assert prediction.problems == [
        "There is no prediction for some prompts of block:16: T(17) of the target lies outside the sizes measured: "
        "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16."
    ]
    measured = [run.speedup for run in runs if run.mode == "block:4"]
    assert [point[1] for point in prediction.points["block:4"]] == pytest.approx(measured)
    # The synthetic runs cost what the curves say, and a little more beside.
    assert all(0.9 * predicted < found < 1.05 * predicted for predicted, found in prediction.points["block:4"])
    assert 0.9 < prediction.median_ratio("block:4") < 1.0


def test_repeats_of_a_prompt_are_one_point() -> None:
    once = synthetic.bench_runs(("plain", "block:4"), ("code",), prompts=1)
    prediction = Prediction.of(synthetic.bench_result([*once, *once]))
    assert prediction == Prediction.of(synthetic.bench_result(once))


def test_no_prediction_without_both_curves() -> None:
    runs = synthetic.bench_runs(("plain", "block:4"), ("code",))
    assert Prediction.of(synthetic.bench_result(runs, curves=False)) == Prediction({}, [])
