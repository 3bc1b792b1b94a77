"""The arithmetic behind a report: rounds by what they drafted, and the speedup that their costs predict."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
import synthetic_bench as synthetic

from specllama.cost_curve import CostCurve
from specllama.evidence.bench.rounds import Prediction, num_rounds, predicted_speedup, seconds_by_part
from specllama.evidence.data import total
from specllama.stats import Stats

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

TARGET = CostCurve("target", 128, {n: (0.100 + 0.010 * (n - 1),) for n in range(1, 10)})
DRAFT = CostCurve("draft", 128, {1: (0.020,)})


def stats(
    num_tokens: int, drafted: tuple[int, ...] = (), accepted: tuple[int, ...] = (), plain: int = 0, **more: Any
) -> Stats:
    """Of rounds that drafted so far (by position), and of so many that drafted nothing."""
    return Stats(
        num_tokens=num_tokens,
        num_drafts=max(drafted, default=0),
        num_draft_tokens=sum(drafted),
        num_accepted_tokens=sum(accepted),
        num_draft_tokens_per_pos=drafted,
        num_accepted_tokens_per_pos=accepted,
        num_rounds_per_gamma=(plain, *(now - more for now, more in itertools.pairwise([*drafted, 0]))),
        **more,
    )


def test_statistics_of_several_generations() -> None:
    seconds = {"total_seconds": 5.0, "prompt_seconds": 2.0, "draft_seconds": 0.5, "plain_seconds": 0.1}
    one = stats(8, (2, 2), (2, 1), plain=3, **seconds)
    found = total([one, stats(9, (3, 3, 3), (2, 2, 2), fallback_reason="because"), stats(5, plain=5, **seconds)])
    assert found == Stats(
        num_tokens=22,
        num_drafts=5,
        num_draft_tokens=13,
        num_accepted_tokens=9,
        num_draft_tokens_per_pos=(5, 5, 3),
        num_accepted_tokens_per_pos=(4, 3, 2),
        num_rounds_per_gamma=(8, 0, 2, 3),
        acceptance_rate=9 / 13,
        mean_acceptance_length=1 + 9 / 5,
        total_seconds=10.0,
        prompt_seconds=4.0,
        draft_seconds=1.0,
        tokens_per_second=22 / 6,
        fallback_reason="because",
    )
    assert total([]) == Stats()


def test_seconds_by_part() -> None:
    parts = {"draft_seconds": 0.5, "verify_seconds": 1.5, "sample_seconds": 0.25, "rollback_seconds": 0.125}
    found = seconds_by_part(stats(10, total_seconds=5.0, prompt_seconds=2.0, **parts))
    assert found == {"draft": 0.5, "verify": 1.5, "sample": 0.25, "rollback": 0.125, "other": 0.625}


def test_rounds_of_a_real_generation(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good, num_draft_tokens=3)
    for max_tokens in (1, 2, 17, 40):
        llm.reset()
        llm.create_completion("the cat sat on", max_tokens=max_tokens, temperature=0.8, seed=5)
        found = llm.stats
        # Every round decodes its drafts and one token more; the prompt's last token is with the prompt.
        decoded = found.num_target_tokens_decoded - found.num_prompt_tokens
        assert num_rounds(found) + found.num_draft_tokens == decoded


# The mean gamma is 2, but T(3) is not the mean of T(2) and T(4) here.
STEEP = CostCurve("target", 0, {1: (1.0,), 2: (1.0,), 3: (5.0,), 4: (2.0,)})


@pytest.mark.parametrize(
    ("rounds", "target", "expected"),
    [
        (
            stats(250, (100,) * 4, (60, 45, 30, 15)),
            TARGET,
            2.5 / (4 * 0.2 + 1.4),
        ),  # E, gamma c, v
        (stats(77, plain=77), TARGET, 1.0),
        (stats(50 + 10 * 3, (10, 10), (10, 10), plain=50), TARGET, 80 / (50 + 10 * (0.4 + 1.2))),
        (stats(40, (20, 10, 10), (10, 5, 5)), STEEP, 2.0 / ((0.02 + 1.0 + 3 * 0.02 + 2.0) / 2)),
        (stats(20, (10,), (10,)), CostCurve("target", 0, {1: (1.0,), 4: (1.6,)}), 2.0 / (0.02 + 1.2)),  # interpolated
    ],
)
def test_rounds_cost_what_their_batches_and_drafts_cost(rounds: Stats, target: CostCurve, expected: float) -> None:
    assert predicted_speedup(rounds, target, DRAFT) == pytest.approx(expected)


def test_flat_costs_give_the_improvement_factor_of_leviathan() -> None:
    alpha, gamma, c, count = 0.8, 5, 0.1, 10**6
    accepted = tuple(round(count * alpha**i) for i in range(1, gamma + 1))
    rounds = stats(count + sum(accepted), (count,) * gamma, accepted)
    flat = CostCurve("target", 0, dict.fromkeys(range(1, 8), (1.0,)))
    expected = (1 - alpha ** (gamma + 1)) / ((1 - alpha) * (gamma * c + 1))  # theorem 3.8
    assert predicted_speedup(rounds, flat, CostCurve("draft", 0, {1: (c,)})) == pytest.approx(expected, rel=1e-5)


def test_what_cannot_be_predicted() -> None:
    with pytest.raises(ValueError, match="nothing was generated"):
        predicted_speedup(total([]), TARGET, DRAFT)
    with pytest.raises(ValueError, match=r"T\(10\) of the target lies outside the sizes measured: 1, 2, .*9"):
        predicted_speedup(stats(20, (5,) * 9, (5, 5, 5, 0, 0, 0, 0, 0, 0)), TARGET, DRAFT)


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
    twice = synthetic.bench_result([*runs, *runs])  # repeats of a prompt are one point
    assert Prediction.of(twice) == prediction
    assert Prediction.of(synthetic.bench_result(runs, curves=False)) == Prediction({}, [])
