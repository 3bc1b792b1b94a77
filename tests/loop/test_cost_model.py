"""CostModel: what batches of n tokens cost, learned one decode at a time."""

from __future__ import annotations

import itertools
import math
import random
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation import TARGETS

from specllama import _core_test as _test

STEPPED = {1: 1.0, 2: 1.63, 3: 2.17, 4: 1.69, 5: 2.65, 6: 3.2}
"""Four tokens cost less than three."""


def model_of(seconds: dict[int, float], times: int = 1) -> _test.CostModel:
    """What a model knows that has seen every size so often."""
    model = _test.CostModel()
    for _ in range(times):
        for n, value in seconds.items():
            model.observe(n, value)
    return model


def repeat(model: _test.CostModel, n: int, seconds: float, times: int) -> None:
    for _ in range(times):
        model.observe(n, seconds)


def test_nothing_is_known_at_first() -> None:
    model = _test.CostModel()
    assert model.known() == {}
    assert model.seconds(1) == 0.0


def test_one_observation_is_believed() -> None:
    model = model_of({4: 0.2})
    assert model.seconds(4) == pytest.approx(0.2)
    assert model.known() == {4: pytest.approx(0.2)}


@pytest.mark.parametrize("values", [*itertools.permutations((0.2, 0.4, 9.0))])
def test_of_three_that_are_not_alike_the_middle_one_is_believed(values: tuple[float, ...]) -> None:
    """Of two the smaller one: the other may have been held up."""
    model = _test.CostModel()
    for count, value in enumerate(values, start=1):
        model.observe(4, value)
        assert model.seconds(4) == pytest.approx(sorted(values[:count])[count // 3])


def test_the_first_three_are_averaged() -> None:
    """In log seconds, in which noise is even."""
    model = _test.CostModel()
    for value in (0.2, 0.28, 0.25):
        model.observe(4, value)
    assert model.seconds(4) == pytest.approx((0.2 * 0.28 * 0.25) ** (1 / 3))


def test_observations_are_followed() -> None:
    model = model_of({4: 0.2}, times=10)
    repeat(model, 4, 0.3, 15)
    assert model.seconds(4) == pytest.approx(0.3, rel=0.01)


def test_sizes_in_between_are_interpolated() -> None:
    model = model_of({1: 1.0, 5: 3.0}, times=2)
    assert [model.seconds(n) for n in (2, 3, 4)] == pytest.approx([1.5, 2.0, 2.5])


def test_larger_sizes_look_worth_trying() -> None:
    """Beyond what is known every token costs something, but no more than a tenth of T(1)."""
    model = model_of({1: 1.0, 4: 1.5})
    costs = [model.seconds(n) for n in range(4, 40)]
    assert costs[0] == pytest.approx(1.5)
    assert np.diff(costs) == pytest.approx(0.1)


def test_smaller_sizes_cost_less() -> None:
    """The draft is seen decoding a prompt first."""
    model = model_of({100: 2.0})
    costs = [model.seconds(n) for n in range(1, 101)]
    assert all(np.diff(costs) > 0.0)
    assert 2.0 / 100 < costs[0] < 2.0 / 5


@pytest.mark.parametrize("name", TARGETS)
def test_curves_of_any_shape_are_kept(name: str) -> None:
    rng = np.random.default_rng(1)
    true = TARGETS[name]
    model = _test.CostModel()
    for _ in range(30):
        for n in range(1, 18):
            model.observe(n, true(n) * float(np.exp(rng.normal(0.0, 0.05))))
    for n in range(1, 18):
        assert model.seconds(n) == pytest.approx(true(n), rel=0.1)
    if name == "not monotonic":
        assert model.seconds(4) < 0.9 * model.seconds(3)


@pytest.mark.parametrize("factor", [2.0, 0.6])
@pytest.mark.parametrize("observed", [1, 4])
def test_all_sizes_follow_what_one_shows(observed: int, factor: float) -> None:
    """A hotter processor: the size that is seen follows all the way, the others a good part of it, and back."""
    model = model_of(STEPPED, times=5)
    repeat(model, observed, STEPPED[observed] * factor, 30)
    for n, before in STEPPED.items():
        share = math.log(model.seconds(n) / before) / math.log(factor)
        assert share == pytest.approx(1.0, abs=0.01) if n == observed else 0.4 < share < 1.0
    repeat(model, observed, STEPPED[observed], 30)
    for n, before in STEPPED.items():
        assert model.seconds(n) == pytest.approx(before, rel=0.02 if n == observed else 0.1)


def test_a_size_that_was_not_seen_for_long_takes_its_change_upon_itself() -> None:
    """It may have changed alone, where the others were seen not to: it is bound by memory, and a neighbour moved in."""
    model = model_of(STEPPED, times=5)
    for _ in range(10):
        for n in (4, 5):
            model.observe(n, STEPPED[n])
    model.observe(1, 1.5)
    own = math.log(model.seconds(1), 1.5)
    others = math.log(model.seconds(4) / STEPPED[4], 1.5)
    assert own > 0.4
    assert others < own / 3


def test_a_drift_that_every_size_shows_is_followed_to_the_end() -> None:
    model = model_of(STEPPED, times=5)
    for _ in range(15):
        for n, before in STEPPED.items():
            model.observe(n, 2.0 * before)
    assert model.known() == {n: pytest.approx(2.0 * before, rel=0.02) for n, before in STEPPED.items()}


def test_an_outlier_does_not_turn_the_curve_over() -> None:
    """A decode that took a hundred times as long moves its size by less than a third, and is forgotten soon."""
    model = model_of(STEPPED, times=5)
    model.observe(1, 100.0)
    assert model.seconds(1) < 1.33
    for n, before in STEPPED.items():
        assert model.seconds(n) < 1.33 * before
    order = sorted(STEPPED, key=model.seconds)
    assert order == sorted(STEPPED, key=STEPPED.__getitem__)
    repeat(model, 1, 1.0, 10)
    for n, before in STEPPED.items():
        assert model.seconds(n) == pytest.approx(before, rel=0.02 if n == 1 else 0.08)


def test_a_first_decode_that_was_held_up_is_unlearned() -> None:
    """Nobody would try a size again that seems to cost three times as much as the ones beside it."""
    model = model_of(STEPPED, times=5)
    model.observe(9, 3.6)
    for _ in range(2):
        model.observe(8, 10.0)
    assert model.seconds(8) == pytest.approx(10.0)
    repeat(model, 1, 1.0, 300)
    assert 8 not in model.known()
    assert STEPPED[6] < model.seconds(8) < 3.7
    model.observe(8, 3.5)
    assert model.seconds(8) == pytest.approx(3.5)


def test_two_sizes_that_were_held_up_are_unlearned() -> None:
    """Side by side they hide each other, but a larger batch that is cheaper gives them away."""
    model = _test.CostModel()
    model.restore({**STEPPED, 2: 3.4, 3: 3.1})
    repeat(model, 1, 1.0, 256)
    assert model.known().keys() == STEPPED.keys() - {2}
    repeat(model, 1, 1.0, 256)
    assert model.known().keys() == STEPPED.keys() - {2, 3}


def test_a_first_batch_that_cost_more_than_its_tokens_is_not_believed() -> None:
    """On a GPU the first batch of each size is slow. Twice is no accident."""
    model = model_of({1: 1.0}, times=3)
    model.observe(4, 30.0)
    assert model.seconds(4) == pytest.approx(1.5 * 1.3), "half as much again as was guessed"
    model.observe(4, 30.0)
    assert model.seconds(4) == pytest.approx(30.0)
    model.observe(6, 30.0)
    model.observe(6, 1.5)
    assert model.seconds(6) == pytest.approx(1.5)


def test_steps_that_are_real_are_kept() -> None:
    """A size that was seen often enough, or costs hardly more than its neighbours, stays however dear it is."""
    model = model_of(STEPPED, times=3)
    model.observe(8, 4.0)
    model.observe(9, 3.6)
    repeat(model, 1, 1.0, 1100)
    assert model.known().keys() == {*STEPPED, 8, 9}


@pytest.mark.parametrize("first", STEPPED)
def test_a_restored_curve_takes_its_level_from_whatever_comes_first(first: int) -> None:
    model = _test.CostModel()
    model.restore(STEPPED)
    model.observe(first, 0.4 * STEPPED[first])
    assert model.known() == {n: pytest.approx(0.4 * before) for n, before in STEPPED.items()}


def test_a_size_beyond_a_restored_curve_says_nothing_of_its_level() -> None:
    """What it costs relative to the others is not known: a prompt may be much cheaper than guessed."""
    model = _test.CostModel()
    model.restore(STEPPED)
    model.observe(512, 3.0)
    assert model.seconds(1) == pytest.approx(1.0)
    assert model.seconds(512) == pytest.approx(3.0)
    model.observe(1, 0.5)
    assert model.seconds(4) == pytest.approx(0.5 * STEPPED[4])


def test_a_slow_start_does_not_bend_a_restored_curve() -> None:
    """The first decode after loading takes three times as long as the next ones."""
    model = _test.CostModel()
    model.restore(STEPPED)
    model.observe(1, 3.0)
    repeat(model, 1, 1.0, 4)
    assert model.known() == {n: pytest.approx(before, rel=0.01) for n, before in STEPPED.items()}


def test_a_restored_size_is_worth_an_observation() -> None:
    """One decode that took twice as long may have been bad luck, two were not."""
    model = _test.CostModel()
    model.restore(STEPPED)
    repeat(model, 1, 1.0, 5)
    model.observe(4, 2 * STEPPED[4])
    assert model.seconds(4) == pytest.approx(STEPPED[4])
    model.observe(4, 2 * STEPPED[4])
    assert model.seconds(4) == pytest.approx(2 * STEPPED[4])


@pytest.mark.parametrize("wrong", [1e-3, 1e3])
def test_a_size_that_was_restored_wrongly_does_not_mislead_the_others(wrong: float) -> None:
    """A prompt comes first, of a size that is hardly ever seen: what is wrong about it is not the level's."""
    model = _test.CostModel()
    model.restore({**STEPPED, 7: 3.5 * wrong})
    model.observe(7, 3.5)
    assert model.seconds(1) <= 1.0
    repeat(model, 1, 1.0, 2)
    assert model.seconds(1) == pytest.approx(1.0)
    assert model.seconds(6) == pytest.approx(STEPPED[6])


@pytest.mark.parametrize("held_up", [0, 1, 2])
def test_a_batch_that_was_held_up_is_no_level(held_up: int) -> None:
    model = _test.CostModel()
    model.restore(STEPPED)
    for i in range(3):
        model.observe(2, STEPPED[2] * (50.0 if i == held_up else 0.5))
        assert model.seconds(1) <= 1.0
    assert model.seconds(1) == pytest.approx(0.5, rel=0.15)


def test_a_curve_does_not_drift_from_process_to_process() -> None:
    """Of a size that is never seen again: each process takes the level from noisy batches, and hands the curve on."""
    rng = random.Random(1)
    drifts = []
    for _ in range(40):
        known = STEPPED
        for _ in range(50):
            model = _test.CostModel()
            model.restore(known)
            for _ in range(20):
                model.observe(1, math.exp(rng.gauss(0.0, 0.2)))
            known = model.known()
        drifts.append(math.log(known[6] / known[1] / STEPPED[6]))
    assert abs(statistics.mean(drifts)) < 4 * statistics.stdev(drifts) / math.sqrt(len(drifts))
    assert max(map(abs, drifts)) < 3.0


def test_a_restored_curve_gives_way_to_what_is_measured() -> None:
    model = _test.CostModel()
    model.restore({1: 1.0, 4: 4.0, 8: 8.0})
    today = {1: 1.0, 4: 1.2, 8: 1.5}
    for _ in range(20):
        for n, value in today.items():
            model.observe(n, value)
    assert model.known() == {n: pytest.approx(value, rel=0.05) for n, value in today.items()}


def test_restoring_takes_the_place_of_what_was_known() -> None:
    model = model_of({1: 7.0, 2: 8.0}, times=5)
    model.restore({1: 1.0, 4: 2.0})
    assert model.known() == {1: pytest.approx(1.0), 4: pytest.approx(2.0)}
    model.observe(4, 1.0)
    assert model.seconds(1) == pytest.approx(0.5)


UNUSABLE = [0.0, -1.0, math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("seconds", UNUSABLE)
def test_times_that_cannot_be_are_ignored(seconds: float) -> None:
    model = model_of(STEPPED)
    before = model.known()
    for n in (1, 3, 9):
        model.observe(n, seconds)
    model.observe(0, 1.0)
    assert model.known() == before
    model.restore({0: 1.0, 1: 0.5, 2: seconds})
    assert model.known() == {1: pytest.approx(0.5)}
    model.restore({2: seconds})
    model.observe(3, 0.25)
    assert model.known() == {3: pytest.approx(0.25)}


SIZES = st.integers(1, 40)
SECONDS = st.floats(1e-6, 1e3)


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(SIZES, SECONDS, max_size=8),
    st.lists(st.tuples(SIZES, st.one_of(SECONDS, st.sampled_from(UNUSABLE))), max_size=40),
)
def test_estimates_are_positive_and_finite(restored: dict[int, float], observations: list[tuple[int, float]]) -> None:
    """Whatever was measured; and never above the largest or below the smallest by more than growth explains."""
    model = _test.CostModel()
    model.restore(restored)
    for n, seconds in observations:
        model.observe(n, seconds)
    known = model.known()
    for n in range(1, 65):
        estimate = model.seconds(n)
        if not known:
            assert estimate == 0.0
            continue
        assert math.isfinite(estimate)
        assert min(known.values()) / 6 <= estimate * (1 + 1e-9)
        assert estimate <= max(known.values()) * 8 * (1 + 1e-9)
        if n in known:
            assert estimate == pytest.approx(known[n])


def test_a_text_pays_for_what_its_tokens_add_to_the_others() -> None:
    """Eight rows at a time: beside seven tokens the second one begins another eight, beside four it finds them open."""
    costs = {n: 0.05 + 0.05 * ((n + 7) // 8) for n in range(1, 33)}
    model = _test.CostModel()
    model.restore(costs)
    share = costs[8] / 8
    full, open_one = model.among(7, 8), model.among(4, 5)
    assert full.seconds(1) == pytest.approx(share)
    assert full.seconds(2) == pytest.approx(share + 0.05)
    assert full.seconds(9) == pytest.approx(share + 0.05)
    assert open_one.seconds(1) == pytest.approx(costs[5] / 5)
    assert open_one.seconds(3) == pytest.approx(costs[5] / 5), "no token of this batch costs more than a single one"
    assert model.among(0, 1).seconds(3) == model.seconds(3), "one text has nobody else in the batch"
    full.observe(9, 1.0)
    assert full.seconds(2) == pytest.approx(share + 0.05), "it does not see whole batches"


def test_a_token_that_looks_free_by_chance_costs_what_tokens_cost() -> None:
    """Of two sizes that were measured at different moments the larger one may look cheaper."""
    model = _test.CostModel()
    model.restore({1: 0.05, 8: 0.12, 16: 0.25, 17: 0.24})
    beside = model.among(15, 16)
    assert beside.seconds(2) - beside.seconds(1) == pytest.approx((0.24 - 0.05) / 16)
