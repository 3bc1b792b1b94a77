"""Pace: how much a round drafts, and from where. Single decisions, with curves that it knows exactly."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pace_driver import Driver, Expectation, decided, looked_up
from simulation import DRAFT, MOST, TARGETS, curve

from specllama import _core_test as _test

START = 10
"""Pace.before() where no token of the model came before."""


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.floats(1.0, 3.0), min_size=MOST, max_size=MOST),
    st.lists(st.tuples(st.integers(1, 64), st.booleans()), max_size=MOST),
    st.one_of(st.none(), st.floats(0.01, 1.0)),
)
def test_it_never_drafts_where_every_token_costs_a_decode(
    steps: list[float], lookup: list[tuple[int, bool]], draft_cost: float | None
) -> None:
    """Then a draft that was certain to be accepted would gain nothing, and none is certain."""
    costs = [1.0]
    for step in steps:
        costs.append(costs[-1] + step)
    draft = None if draft_cost is None else curve(draft_cost, {1: 1.0, 100: 2.0})
    driver = Driver(lambda n: costs[int(n) - 1], draft)
    assert driver.draw([Expectation.of_lookup(*match) for match in lookup], confidence=0.999) == []


def test_a_text_that_draws_alone_has_the_others_wait() -> None:
    """Four texts whose batches cost the target hardly more than one token: the draft's are worth it if all draw."""
    target, draft = _test.CostModel(), _test.CostModel()
    target.restore({n: TARGETS["flat"](n) for n in range(1, 65)})
    draft.restore({n: DRAFT(n) for n in range(1, 65)})
    for num_drawing, move in ((4, "model"), (1, "stop")):
        pace = _test.Pace()
        pace.begin_generation()
        pace.share(4, 3, target, num_drawing, [draft])
        pace.begin_round(MOST, 1)
        assert decided(pace, [])[0] == move


def test_a_draft_as_slow_as_the_target_is_not_used_and_the_lookup_is() -> None:
    driver = Driver(TARGETS["flat"], TARGETS["flat"])
    assert driver.draw() == []
    driver.end(0)
    assert set(driver.draw(looked_up(20))) == {"lookup"}


def test_what_a_grammar_forces_is_drafted_where_batches_are_cheap() -> None:
    forced = [Expectation.of_grammar(True)] * 6 + [Expectation.of_grammar(False)] * 2
    assert Driver(TARGETS["16-bit"]).draw(forced) == ["lookup"] * 8
    assert Driver(TARGETS["linear"]).draw(forced) == []


def test_it_drafts_where_it_pays() -> None:
    driver = Driver(TARGETS["16-bit"], DRAFT)
    assert set(driver.draw(confidence=0.98)) == {"model"}
    assert driver.draw(most=0) == []


def test_an_unsure_draft_is_shorter() -> None:
    """It stops behind the first token that makes the rest unlikely."""
    lengths = [len(Driver(TARGETS["16-bit"], DRAFT).draw(confidence=c)) for c in (0.999, 0.9, 0.6, 0.1)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > 2 * lengths[2]
    assert lengths[-1] == 1


@pytest.mark.parametrize("most", [1, 2, 3, 16])
def test_no_more_than_asked_for(most: int) -> None:
    free = curve(0.0001, {1: 1.0, 100: 1.0})
    assert len(Driver(TARGETS["flat"], free).draw(confidence=0.999, most=most)) == most
    driver = Driver(TARGETS["flat"])
    for _ in range(4):  # until the window is large
        assert len(driver.draw(looked_up(40), most=most)) <= most
        driver.end(len(driver.sources))
    assert len(driver.sources) == most


def test_missing_tokens_make_the_model_dearer() -> None:
    """Far behind, the draft has to decode a lot before it can draft: most of it is for the rounds to come."""
    first = []
    for missing in (1, 3000):
        pace = Driver(TARGETS["8-bit"], curve(0.015, {1: 1.0, 3001: 3001.0})).pace
        pace.begin_round(MOST, missing)
        first.append(decided(pace, [])[0])
    assert first == ["model", "stop"]


def test_tokens_of_one_decode_are_paid_once() -> None:
    """A parallel draft of eight tokens costs a little more than one token, and the other seven nothing."""
    target, draft = curve(0.1, {1: 1.0, 32: 1.1}), curve(0.05, {1: 1.0, 8: 1.2, 32: 2.0})
    one, eight = Driver(target, draft), Driver(target, draft, block=8)
    assert len(one.draw(confidence=0.5)) < 4
    assert len(eight.draw(confidence=0.5)) == 8
    assert len(eight.draw(confidence=0.5, most=5)) == 5
    dear = Driver(target, curve(0.4, {1: 1.0, 8: 1.2}), block=8)
    assert len(dear.draw(confidence=0.5)) == 0


def test_what_a_token_comes_behind() -> None:
    pace = Driver(TARGETS["16-bit"], DRAFT).pace
    pace.begin_round(MOST, 1)
    assert pace.before() == START
    buckets = []
    for confidence in (0.1, 0.6, 0.97, 1.0):
        pace.drafted(Expectation.of_model(confidence, pace.before()))
        buckets.append(pace.before())
    assert buckets == sorted(set(buckets))
    assert max(buckets) == START - 1
    pace.drafted(Expectation.of_lookup(5, False))
    assert pace.before() == START


def test_the_model_goes_on_behind_a_lookup() -> None:
    """A short match, and a draft that is nearly free."""
    driver = Driver(TARGETS["flat"], curve(0.0001, {1: 1.0, 100: 1.0}))
    sources = driver.draw(looked_up(20, count=2), confidence=0.98)
    assert sources[:3] == ["lookup", "lookup", "model"]


def test_a_copy_that_has_ended_does_not_forbid_the_model() -> None:
    """A copy earns more than the model ever will, which must not make the model's tokens look too dear behind it."""
    driver = Driver(TARGETS["flat"], DRAFT)
    for _ in range(8):
        assert set(driver.draw(confidence=0.6)) == {"model"}
        driver.end(1)
    for _ in range(4):
        assert set(driver.draw(looked_up(40))) == {"lookup"}
        driver.end(len(driver.sources))
    assert set(driver.draw(confidence=0.6)) == {"model"}


def test_copies_may_be_longer_than_drafts() -> None:
    """Sixteen drawn tokens that are all right are rare, whatever the model thinks of them."""
    free = curve(0.0001, {1: 1.0, 100: 1.0})
    driver = Driver(TARGETS["flat"], free)
    assert driver.draw(confidence=0.999, most=64) == ["model"] * 16
    driver.end(16)
    driver = Driver(TARGETS["flat"])
    lengths = []
    for _ in range(6):
        lengths.append(len(driver.draw(looked_up(40, count=64), most=64)))
        driver.end(lengths[-1])
    assert lengths[-1] == 64


def test_a_doubtful_copy_is_taken_in_parts() -> None:
    """What comes behind a part that is all right can be copied in the next round, so a failure loses more than time."""
    driver = Driver(curve(0.05, {1: 1.0, 101: 41.0}), first_window=16.0)
    assert first_decision(driver) < MOST, "each token by itself is expected to earn more than it costs"


def first_decision(driver: Driver) -> int:
    """How many tokens the first decision of a round takes from a lookup that promises a lot. Drafts them."""
    driver.pace.begin_round(MOST, 0)
    driver.draft_seconds = 0.0
    move, count = decided(driver.pace, looked_up(40))
    assert move == "lookup"
    driver.sources = ["lookup"] * count
    for expectation in looked_up(40)[:count]:
        driver.pace.drafted(expectation)
    return count


def test_the_window_of_a_lookup_doubles_and_shrinks() -> None:
    """It opens while copies are accepted whole, as far as it may; a failure leaves it twice what was right."""
    driver = Driver(TARGETS["flat"])
    taken = []
    for _ in range(4):
        taken.append(first_decision(driver))
        driver.end(taken[-1])
    assert taken == [3, 7, 15, MOST]
    for right, expected in [(4, 8), (0, 3)]:
        first_decision(driver)
        driver.end(right)
        assert first_decision(driver) == expected
        driver.end(0 if expected == 3 else expected)
    first_decision(driver)
    driver.end(3)
    assert first_decision(driver) == 7
    driver.end(7)
    driver.pace.begin_generation()
    assert first_decision(driver) == 3, "another text may not repeat itself"


def test_a_lookup_that_was_not_reached_says_nothing_of_the_window() -> None:
    driver = Driver(TARGETS["flat"], curve(0.0001, {1: 1.0, 100: 1.0}))
    driver.pace.begin_round(MOST, 1)
    assert decided(driver.pace, []) == ("model", 1)
    driver.pace.drafted(Expectation.of_model(0.9, driver.pace.before()))
    for expectation in looked_up(20, count=5):
        driver.pace.drafted(expectation)
    driver.pace.end_round(0, 0.06, 0.001)  # the model's token was wrong
    assert first_decision(driver) == 3


@pytest.mark.parametrize("right", [True, False])
def test_lookups_that_were_not_used_are_judged(right: bool) -> None:
    """A short, disputed match is not copied at first; it is when others like it would have been right."""
    driver = Driver(curve(0.05, {1: 1.0, 101: 41.0}))
    lookup = looked_up(2, count=1, disputed=True)
    assert driver.draw(lookup) == []
    for _ in range(25):
        driver.end(0)
        driver.pace.judge_unused(lookup, int(right), 1)
        driver.pace.begin_round(MOST, 0)
        driver.sources = []
    assert driver.draw(lookup) == (["lookup"] if right else [])


def test_only_what_can_be_judged_counts() -> None:
    """Of ten tokens offered two could be compared with the text: the third is not a failure."""
    driver = Driver(curve(0.05, {1: 1.0, 101: 41.0}))
    for _ in range(25):
        driver.draw([])
        driver.end(0)
        driver.pace.judge_unused(looked_up(2, count=10), 2, 2)
    assert driver.draw(looked_up(2))
