"""Pace: how much a round drafts, and from where. Single decisions, with curves that it knows exactly."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation import DRAFT, MOST, TARGETS, Curve, curve

from specllama import _core

Expectation = _core.Expectation
START = 10
"""Pace.before() where no token of the model came before."""


def looked_up(length: int, count: int = MOST, disputed: bool = False) -> list[_core.Expectation]:
    """What the lookup offers behind `length` tokens that agree."""
    return [Expectation.of_lookup(length + i, disputed) for i in range(count)]


class Driver:
    """A pace that knows its curves, and rounds whose outcome the test decides."""

    def __init__(self, target: Curve, draft: Curve | None = None) -> None:
        self.target = target
        self.draft = draft
        self.pace = _core.Pace()
        self.pace.target.restore({n: target(n) for n in range(1, MOST + 2)})
        if draft is not None:
            self.pace.draft.restore({n: draft(n) for n in range(1, 33)})
        self.pace.begin_generation()
        assert self.draw(looked_up(20), confidence=0.99) == [], "it sees first how fast plain decoding is today"
        self.end(0)

    def draw(
        self,
        lookup: Sequence[_core.Expectation] = (),
        confidence: float = 0.9,
        most: int = MOST,
        may_drop: bool = False,
    ) -> list[str]:
        """Begins a round and drafts until the pace stops. Where each token came from."""
        missing = 0 if self.draft is None else 1
        self.pace.begin_round(most, missing, may_drop)
        self.sources: list[str] = []
        self.draft_seconds = 0.0
        while True:
            done = len(self.sources)
            offered = list(lookup[done : min(most, len(lookup))])
            move, count = self.pace.decide(offered)
            assert done + count <= most
            if move == "stop":
                assert count == 0
                return self.sources
            for i in range(count):
                if move == "model":
                    assert self.draft is not None, "there is no model"
                    self.draft_seconds += self.draft(missing)
                    missing = 0
                    self.pace.drafted(Expectation.of_model(confidence, self.pace.before()))
                else:
                    self.pace.drafted(offered[i] if move == "lookup" else Expectation.of_padding())
                missing += 1
            self.sources += [move] * count

    def end(self, num_accepted: int) -> None:
        """Verifies the round."""
        self.pace.end_round(num_accepted, self.target(len(self.sources) + 1), self.draft_seconds)


FIRST_IS_DEAR = curve(0.1, {1: 1.0, 2: 1.65, 17: 1.8})
"""A batch of two costs far more than one token, those of more little more: as F16 on some processors."""


def test_a_doubtful_token_is_dropped_where_that_cannot_change_the_text() -> None:
    for may_drop, kept in ((False, 1), (True, 0)):
        driver = Driver(FIRST_IS_DEAR, DRAFT)
        assert driver.draw(confidence=0.1, most=1, may_drop=may_drop) == ["model"]
        assert driver.pace.drop() == kept


def test_likely_tokens_are_kept_and_a_doubtful_last_one_only_where_it_costs_little() -> None:
    for step, kept in ((0.01, 4), (0.9, 3)):
        driver = Driver(curve(0.1, {1: 1.0, 4: 1.1, 5: 1.1 + step, 17: 20.0}), curve(0.001, {1: 1.0, 32: 1.5}))
        driver.pace.begin_round(MOST, 1, may_drop=True)
        for confidence in (0.999, 0.999, 0.999, 0.1):
            driver.pace.drafted(Expectation.of_model(confidence, driver.pace.before()))
        assert driver.pace.drop() == kept
        driver.pace.end_round(kept, driver.target(kept + 1), 0.01)


def test_what_was_dropped_teaches_how_likely_such_tokens_are() -> None:
    driver = Driver(FIRST_IS_DEAR, DRAFT)
    for _ in range(40):
        driver.draw(confidence=0.3, most=1, may_drop=True)
        kept = driver.pace.drop()
        driver.sources = driver.sources[:kept]
        driver.end(kept)
        if kept == 0:
            driver.pace.judge_dropped(True)
    assert driver.draw(confidence=0.3, most=1, may_drop=True) == ["model"]
    assert driver.pace.drop() == 1, "they were right each time"


def test_plain_decoding_is_measured_first_and_every_hundred_rounds() -> None:
    """Nothing is drafted then, however much it promises."""
    pace = _core.Pace()
    pace.begin_generation()
    plain = []
    for i in range(210):
        pace.begin_round(MOST, 0)
        move, count = pace.decide(looked_up(40))
        if move == "stop":
            plain.append(i)
        for expectation in looked_up(40)[:count]:
            pace.drafted(expectation)
        pace.end_round(count, TARGETS["flat"](count + 1), 0.0)
    assert plain == [0, 1, 102, 203]


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


@pytest.mark.parametrize(("gain", "interval"), [(1.0, 8), (3.0, 100)])
def test_plain_decoding_is_measured_more_often_where_that_costs_less(gain: float, interval: int) -> None:
    """Where drafting gains little, and a wrong T(1) would turn the gain into a loss."""
    target = curve(0.05, {1: 1.0, 2: 2.0 / gain, 101: 2.0 / gain})
    driver = Driver(target)
    since, plain = 0, []
    for _ in range(400):
        driver.pace.begin_round(1, 0)
        move, count = driver.pace.decide(looked_up(60, count=1))
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
    pace = _core.Pace()
    pace.decoded(1, 0.05)
    pace.decoded(1, 0.05)
    pace.decoded(5, 0.08)
    assert pace.target.known() == {1: pytest.approx(0.05), 5: pytest.approx(0.08)}
    pace.begin_generation()
    pace.begin_round(MOST, 0)
    assert pace.decide(looked_up(40))[0] == "lookup", "plain decoding need not be measured"


def test_a_prompt_that_the_draft_need_not_decode() -> None:
    """It pays for a target that drafts help, not for one they do not, nor for a few tokens behind a long prompt."""
    chunk = curve(0.015, {1: 1.0, 2: 1.8, 4: 2.0, 16: 5.0, 512: 150.0})
    paces = {name: Driver(TARGETS[name], chunk).pace for name in ("16-bit", "not monotonic")}
    for pace in paces.values():
        pace.draft.restore({n: chunk(n) for n in (1, 2, 4, 16, 512)})
        pace.set_draft_batch(512)
    assert paces["16-bit"].prompt_pays(300, MOST, 128)
    assert not paces["not monotonic"].prompt_pays(300, MOST, 128)
    assert not paces["16-bit"].prompt_pays(300, MOST, 8)
    assert not paces["16-bit"].prompt_pays(5000, MOST, 10**6), "an answer is seldom as long as max_tokens"
    assert _core.Pace().prompt_pays(5000, MOST, 1), "nothing is known: it has to be seen"


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
    nothing_known = _core.Pace()
    assert nothing_known.probes()
    nothing_known.draft.observe(1, 0.1)
    assert nothing_known.draft.known() == {1: pytest.approx(0.1)}


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
        first.append(pace.decide([])[0])
    assert first == ["model", "stop"]


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


def first_decision(driver: Driver) -> int:
    """How many tokens the first decision of a round takes from a lookup that promises a lot. Drafts them."""
    driver.pace.begin_round(MOST, 0)
    driver.draft_seconds = 0.0
    move, count = driver.pace.decide(looked_up(40))
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
    assert driver.pace.decide([]) == ("model", 1)
    driver.pace.drafted(Expectation.of_model(0.9, driver.pace.before()))
    for expectation in looked_up(20, count=5):
        driver.pace.drafted(expectation)
    driver.pace.end_round(0, 0.06, 0.001)  # the model's token was wrong
    assert first_decision(driver) == 3


SIZED = {1: 1.0, 2: 1.3, 3: 1.5, 4: 1.2, 5: 2.0, 6: 2.5, 7: 2.0}
"""Four tokens cost less than two."""


def padded(seen: dict[int, float], found: int, most: int = MOST) -> list[str]:
    """What a round drafts with a lookup of that length, where the target has decoded batches of the sizes `seen`."""
    driver = Driver(lambda n: seen.get(int(n), 3.0 + n))
    for n, seconds in seen.items():
        for _ in range(3):
            driver.pace.target.observe(n, seconds)
    return driver.draw(looked_up(40, count=found), most=most)


def test_a_batch_is_padded_to_a_cheaper_size() -> None:
    assert padded(SIZED, found=1) == ["lookup", "pad", "pad"]
    assert padded(SIZED, found=2) == ["lookup", "lookup", "pad"]
    assert padded(SIZED, found=3) == ["lookup"] * 3
    assert padded(SIZED, found=0) == [], "plain decoding is not padded"


def test_padding_needs_room_and_a_size_that_was_seen() -> None:
    assert padded(SIZED, found=2, most=2) == ["lookup"] * 2
    assert "pad" not in padded({n: s for n, s in SIZED.items() if n != 4}, found=2)
    nearly = {**SIZED, 4: 0.99 * SIZED[3]}
    assert padded(nearly, found=2) == ["lookup"] * 2, "a gain of one percent may be noise"


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
