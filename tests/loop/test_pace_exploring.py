"""Pace: what it spends to find out: measuring plain decoding, a draft's prompt, trying a draft that may not pay."""

from __future__ import annotations

import pytest
from pace_driver import Driver, Expectation, decided, looked_up
from simulation import DRAFT, MOST, TARGETS, curve

from specllama import _core_test as _test


def test_plain_decoding_is_measured_first_and_every_hundred_rounds() -> None:
    """Nothing is drafted then, however much it promises."""
    pace = _test.Pace()
    pace.begin_generation()
    plain = []
    for i in range(210):
        pace.begin_round(MOST, 0)
        move, count = decided(pace, looked_up(40))
        if move == "stop":
            plain.append(i)
        for expectation in looked_up(40)[:count]:
            pace.drafted(expectation)
        pace.end_round(count, TARGETS["flat"](count + 1), 0.0)
    assert plain == [0, 1, 102, 203]


@pytest.mark.parametrize(("gain", "interval"), [(1.0, 8), (3.0, 100)])
def test_plain_decoding_is_measured_more_often_where_that_costs_less(gain: float, interval: int) -> None:
    """Where drafting gains little, and a wrong T(1) would turn the gain into a loss."""
    target = curve(0.05, {1: 1.0, 2: 2.0 / gain, 101: 2.0 / gain})
    driver = Driver(target)
    since, plain = 0, []
    for _ in range(400):
        driver.pace.begin_round(1, 0)
        move, count = decided(driver.pace, looked_up(60, count=1))
        driver.sources = ["lookup"] * count
        driver.draft_seconds = 0.0
        for expectation in looked_up(60, count=1)[:count]:
            driver.pace.drafted(expectation)
        driver.end(count)
        since += 1
        if move == "stop":
            plain.append(since)
            since = 0
    assert plain
    if gain > 1.5:
        assert interval / 2 < plain[-1] <= interval + 1
    else:
        assert plain[-1] <= interval + 1


def test_decodes_that_were_not_paced_teach_what_they_cost() -> None:
    pace = _test.Pace()
    pace.decoded(1, 0.05)
    pace.decoded(1, 0.05)
    pace.decoded(5, 0.08)
    assert pace.target.known() == {1: pytest.approx(0.05), 5: pytest.approx(0.08)}
    pace.begin_generation()
    pace.begin_round(MOST, 0)
    assert decided(pace, looked_up(40))[0] == "lookup", "plain decoding need not be measured"


def test_a_prompt_that_the_draft_need_not_decode() -> None:
    """It pays for a target that drafts help, not for one they do not, nor for a few tokens behind a long prompt."""
    chunk = curve(0.015, {1: 1.0, 2: 1.8, 4: 2.0, 16: 5.0, 512: 150.0})
    paces = {name: Driver(TARGETS[name], chunk).pace for name in ("16-bit", "not monotonic")}
    for pace in paces.values():
        pace.draft.restore({n: chunk(n) for n in (1, 2, 4, 16, 512)})
    assert paces["16-bit"].prompt_pays(300, MOST, 128)
    assert not paces["not monotonic"].prompt_pays(300, MOST, 128)
    assert not paces["16-bit"].prompt_pays(300, MOST, 8)
    assert not paces["16-bit"].prompt_pays(5000, MOST, 10**6), "an answer is seldom as long as max_tokens"
    assert _test.Pace().prompt_pays(5000, MOST, 1), "nothing is known: it has to be seen"


def test_how_long_answers_are_is_learned() -> None:
    """Behind long prompts: short answers do not pay for the draft's, until one is longer than they were."""
    chunk = curve(0.015, {1: 1.0, 2: 1.8, 4: 2.0, 16: 5.0, 512: 150.0})
    pace = Driver(TARGETS["16-bit"], chunk).pace
    pace.draft.restore({n: chunk(n) for n in (1, 2, 4, 16, 512)})
    assert pace.prompt_pays(600, MOST, 1000)
    for _ in range(4):
        pace.begin_generation()
        pace.end_generation(20, 1000)
    pace.begin_generation()
    assert not pace.prompt_pays(600, MOST, 1000)
    pays = []
    for _ in range(150):
        pays.append(pace.prompt_pays(600, MOST, 1000))
        pace.begin_round(MOST, 0)
        assert decided(pace, [])[0] == "stop"
        pace.end_round(0, TARGETS["16-bit"](1), 0.0)
    assert not any(pays[:40])
    assert pays[-1]
    pace.begin_generation()
    assert not pace.prompt_pays(600, MOST, 30)
    for _ in range(20):
        pace.end_generation(500, 500)  # cut: they would have been longer
    assert pace.prompt_pays(3000, MOST, 10**6)


def test_a_draft_that_may_well_pay_gets_its_prompt() -> None:
    """Otherwise it would never be found out; and no longer once it was seen to be bad."""
    target = curve(0.07, {1: 1.0, 2: 1.73, 3: 1.91, 4: 2.31, 5: 3.15, 8: 3.06, 12: 4.47, 17: 5.9})
    pace = Driver(target, curve(0.015, {1: 1.0, 2: 1.8, 4: 2.5, 8: 4.1, 32: 9.3, 512: 150.0})).pace
    assert pace.prompt_pays(60, MOST, 128)
    for _ in range(20):
        pace.begin_round(MOST, 1)
        pace.drafted(Expectation.of_model(0.9, pace.before()))
        pace.end_round(0, target(2), 0.015)
    assert not pace.prompt_pays(60, MOST, 128)


def test_a_draft_that_was_slow_is_looked_at_again() -> None:
    """It was measured in a busy hour, and would not be used again: one of eight prompts begins with a look at it."""
    pace = Driver(TARGETS["16-bit"], curve(1.5, {1: 1.0, 2: 1.1, 32: 8.0})).pace
    probed = []
    for _ in range(17):
        assert not pace.prompt_pays(60, MOST, 128)
        probed.append(pace.probes())
        if probed[-1]:
            pace.draft.observe(1, 1.5)
    assert probed == [i % 8 == 0 for i in range(17)]
    while not pace.probes():
        pass
    for seconds, pays in ((0.9, False), (0.015, True)):  # slow at first, as at the beginning of a process
        pace.draft.observe(1, seconds)
        assert pace.prompt_pays(60, MOST, 128) == pays
    assert pace.draft.seconds(32) == pytest.approx(0.12)
    pace.begin_round(MOST, 1)
    pace.drafted(Expectation.of_model(0.9, pace.before()))
    pace.end_round(1, 0.1, 0.015)
    assert [pace.probes() for _ in range(9)] == [i == 7 for i in range(9)], "it was used"
    nothing_known = _test.Pace()
    assert nothing_known.probes()
    nothing_known.draft.observe(1, 0.1)
    assert nothing_known.draft.known() == {1: pytest.approx(0.1)}


def test_a_draft_that_is_never_right_is_given_up() -> None:
    """Within some rounds, and not for good: what is known of it fades."""
    driver = Driver(TARGETS["16-bit"], DRAFT)
    drafted = []
    for _ in range(400):
        drafted.append(bool(driver.draw(confidence=0.9)))
        driver.end(0)
    assert drafted[0]
    assert sum(drafted[:20]) <= 10
    assert 1 <= sum(drafted[20:]) <= 20


def test_exploring_is_counted_and_bounded_by_its_credit() -> None:
    """It may overdraw once by a round; then 1% of all time is all it takes. What is counted is of one text."""
    driver = Driver(TARGETS["16-bit"], DRAFT)
    plain = driver.target(1)
    seconds = 0.0
    for i in range(1500):
        sources = driver.draw(confidence=0.9)
        driver.end(0)
        seconds += driver.target(len(sources) + 1) + driver.draft_seconds
        assert driver.pace.exploring_seconds <= 1.02 * (2.6 * plain + 0.01 * seconds), f"round {i}"
    assert driver.pace.exploring_seconds > 0.25 * (2.6 * plain + 0.01 * seconds)
    driver.pace.begin_generation()
    assert driver.pace.exploring_seconds == 0.0


def test_a_round_that_was_held_up_is_not_owed_for_ever() -> None:
    """The machine slept in a round that tried the model: later texts try it again all the same."""
    driver = Driver(TARGETS["16-bit"], DRAFT)
    for _ in range(100):  # the model is found to be bad
        driver.draw(confidence=0.9)
        driver.end(0)
    for _ in range(1000):
        driver.draw(confidence=0.9)
        driver.draft_seconds += 1000.0 if driver.sources else 0.0
        driver.end(0)
        if driver.pace.exploring_seconds > 900.0:
            break
    assert driver.pace.exploring_seconds > 900.0
    driver.pace.begin_generation()
    tries = 0
    for _ in range(1000):
        tries += bool(driver.draw(confidence=0.9))
        driver.end(0)
    assert tries > 0


def test_only_rounds_with_the_model_are_exploring() -> None:
    """A lookup is taken for what it earns: what it gains buys the model no more tries, what it loses is not theirs."""
    driver = Driver(TARGETS["16-bit"], DRAFT)
    for _ in range(100):  # the model is found to be bad
        driver.draw(confidence=0.9)
        driver.end(0)
    lost = driver.pace.exploring_seconds
    for right in (True, False):
        for _ in range(60):
            sources = driver.draw(looked_up(30), confidence=0.9)
            driver.end(len(sources) if right else 0)
            if "model" in sources:
                lost = driver.pace.exploring_seconds
            assert driver.pace.exploring_seconds == lost


def test_a_draft_that_has_become_good_is_found_again() -> None:
    driver = Driver(TARGETS["16-bit"], DRAFT)
    for _ in range(100):
        driver.draw(confidence=0.9)
        driver.end(0)
    rounds = 0
    drafted = []
    while sum(drafted[-10:]) < 10 and rounds < 1000:
        drafted.append(bool(driver.draw(confidence=0.9)))
        driver.end(len(driver.sources))
        rounds += 1
    assert rounds < 400


def measured_rounds(seconds: list[float], plain: float = 0.05, rounds: int = 6) -> list[int]:
    """How many tokens each round draws, of a draft whose prompt was held up, and whose decodes take so long then."""
    pace = _test.Pace({}, [("model", 512, 1)])
    pace.begin_generation()
    pace.draft.observe(60, 100 * plain)
    drawn = []
    for _ in range(rounds):
        pace.begin_round(MOST, 1)
        count, took = 0, 0.0
        while pace.decide([]).move == "draw":
            took += seconds[0]
            pace.draft.observe(1, seconds.pop(0) if seconds[1:] else seconds[0])
            pace.drafted(Expectation.of_model(0.9, pace.before()))
            count += 1
        pace.end_round(count, plain, took)
        drawn.append(count)
    return drawn


def test_what_a_draft_costs_is_found_out_whatever_its_prompt_took() -> None:
    """Once where it is cheap; twice where it seems dear, since that one can have been held up."""
    plain, plain, first, *more = measured_rounds([0.005])
    assert (plain, first) == (0, 1) and min(more) > 1
    plain, plain, first, second, *more = measured_rounds([1.0, 0.005])
    assert (plain, first, second) == (0, 1, 1) and min(more) > 1
    assert measured_rounds([1.0], rounds=40) == [0, 0, 1, 1, *[0] * 36]
