"""Pace against simulated targets: its throughput beside plain decoding and the best fixed setting in hindsight.

A fixed setting is a number of tokens and who drafts them: the model, the lookup, or the lookup where there is a match
and else the model. Each bound leaves a margin to the worst of all cases.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np
import pytest
from simulation import FIXED_DRAFTERS, TARGETS, Machine, Simulation, Text, curve, make_text, throughput

from specllama import _core_test as _test

pytestmark = pytest.mark.long

LENGTH = 128
SEEDS = range(8)
GAMMAS = (1, 2, 3, 4, 6, 8, 12)
SLOWDOWNS: dict[str, Callable[[int], float]] = {
    "throttled half way": lambda position: 1.0 if position < LENGTH // 2 else 2.0,
    "slower and slower": lambda position: 1.0 + position / LENGTH,
    "a busy neighbour at first": lambda position: 2.0 if position < LENGTH // 4 else 1.0,
}


def plain(text: Text, machine: Machine) -> float:
    """Tokens per second without a draft."""
    return throughput(Simulation(text, machine, LENGTH).fixed(0, "model"))


def best_fixed(texts: list[Text], machine: Machine) -> float:
    """Mean tokens per second of the setting that is best for all texts together; plain decoding is one, too."""
    drafters = FIXED_DRAFTERS if machine.draft else ("lookup",)
    means = [float(np.mean([plain(text, machine) for text in texts]))]
    for drafter, gamma in itertools.product(drafters, GAMMAS):
        rates = [throughput(Simulation(text, machine, LENGTH).fixed(gamma, drafter)) for text in texts]
        means.append(float(np.mean(rates)))
    return max(means)


def paced(text: Text, machine: Machine, pace: _test.Pace) -> float:
    """Tokens per second under auto."""
    return throughput(Simulation(text, machine, LENGTH).paced(pace))


def against_best_fixed(machine: Machine, process: str, lookup: str = "nothing", *, known: bool = True) -> float:
    """Mean tokens per second under auto, by those of the best fixed setting."""
    texts = [make_text(process, LENGTH, seed, lookup) for seed in SEEDS]
    paces = [machine.known() if known else _test.Pace() for _ in texts]
    ours = np.mean([paced(text, machine, pace) for text, pace in zip(texts, paces, strict=True)])
    return float(ours / best_fixed(texts, machine))


@pytest.mark.parametrize("process", ["constant", "often wrong", "pair", "bursty", "collapsing"])
@pytest.mark.parametrize("target", TARGETS)
def test_near_the_best_fixed_number_of_tokens(target: str, process: str) -> None:
    assert against_best_fixed(Machine(TARGETS[target]), process) > 0.9


@pytest.mark.parametrize("target", TARGETS)
def test_near_it_where_nearly_everything_is_right(target: str) -> None:
    """A fixed gamma of 12 needs not find out that it pays."""
    assert against_best_fixed(Machine(TARGETS[target]), "always") > 0.85


@pytest.mark.parametrize("process", ["pair", "never"])
@pytest.mark.parametrize("target", TARGETS)
def test_near_the_best_fixed_setting_where_texts_repeat_themselves(target: str, process: str) -> None:
    """With a good draft it is the lookup or the model, whichever earns more, and mostly faster than either."""
    ratio = against_best_fixed(Machine(TARGETS[target]), process, "copies")
    assert ratio > (0.93 if process == "never" or target == "linear" else 0.98)


@pytest.mark.parametrize("target", TARGETS)
def test_a_lookup_without_a_model(target: str) -> None:
    assert against_best_fixed(Machine(TARGETS[target], draft=None), "never", "copies") > 0.95


@pytest.mark.parametrize("process", ["pair", "never"])
@pytest.mark.parametrize("target", TARGETS)
def test_a_lookup_that_misleads(target: str, process: str) -> None:
    """Half of all places have a match of two to five tokens, and one in ten of them is right: that is learned first."""
    assert against_best_fixed(Machine(TARGETS[target]), process, "misleading") > 0.85
    assert against_best_fixed(Machine(TARGETS[target], draft=None), process, "misleading") > 0.9


@pytest.mark.parametrize("slowdown", SLOWDOWNS)
@pytest.mark.parametrize("process", ["pair", "collapsing", "never"])
@pytest.mark.parametrize("target", TARGETS)
def test_a_machine_that_drifts(target: str, process: str, slowdown: str) -> None:
    machine = Machine(TARGETS[target], slowdown=SLOWDOWNS[slowdown])
    assert against_best_fixed(machine, process, "copies") > 0.84


@pytest.mark.parametrize("process", ["constant", "pair"])
@pytest.mark.parametrize("target", TARGETS)
def test_a_curve_that_is_not_known_yet(target: str, process: str) -> None:
    """What finding out costs in the first text."""
    assert against_best_fixed(Machine(TARGETS[target]), process, known=False) > 0.85


@pytest.mark.parametrize("cold", [0.02, 0.3])
@pytest.mark.parametrize("process", ["constant", "always"])
def test_a_machine_whose_first_batches_are_slow(process: str, cold: float) -> None:
    """As a GPU's of each size. The draft is used all the same, in the first text, and as much as pays in the next."""
    machine = Machine(curve(0.0026, {1: 1.0, 64: 1.5}), draft=curve(0.0004, {1: 1.0, 64: 2.0}))
    shares, ratios = [], []
    for seed in SEEDS:
        pace = _test.Pace()
        first, second = (make_text(process, LENGTH, number) for number in (seed, 1000 + seed))
        rounds = Simulation(first, dataclasses.replace(machine, cold=cold), LENGTH, seed).paced(pace)
        shares.append(np.mean([bool(each.sources) for each in rounds]))
        ratios.append(paced(second, machine, pace) / best_fixed([second], machine))
    assert np.mean(shares) > 0.6
    assert np.mean(ratios) > 0.85


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("target", TARGETS)
def test_a_draft_that_is_never_right_costs_two_percent_at_most(target: str, known: bool) -> None:
    machine = Machine(TARGETS[target])
    for seed in SEEDS:
        text = make_text("never", LENGTH, seed)
        pace = machine.known() if known else _test.Pace()
        assert paced(text, machine, pace) > 0.98 * plain(text, machine)


@pytest.mark.parametrize("target", TARGETS)
def test_a_draft_that_is_sure_and_never_right(target: str) -> None:
    """What other texts have taught of its confidence has to be unlearned, which a longer text feels less."""
    machine = Machine(TARGETS[target])
    for (length, least), seed in itertools.product(((LENGTH, 0.9), (256, 0.96), (1024, 0.98)), SEEDS):
        text = make_text("never, but sure", length, seed)
        ours = throughput(Simulation(text, machine, length).paced(machine.known()))
        assert ours > least * throughput(Simulation(text, machine, length).fixed(0, "model"))


@pytest.mark.parametrize("target", sorted(TARGETS.keys() - {"linear"}))
def test_a_draft_that_was_useless_in_many_texts_and_becomes_good_is_found_again(target: str) -> None:
    machine, length = Machine(TARGETS[target]), 64
    pace = machine.known()
    for seed in range(300):
        Simulation(make_text("never", length, seed), machine, length).paced(pace)
    drafted = 0
    for seed in range(60):
        rounds = Simulation(make_text("always", length, seed), machine, length).paced(pace)
        drafted = sum("model" in done.sources for done in rounds)
        if drafted >= 3:
            break
    assert drafted >= 3


@pytest.mark.parametrize("process", ["never", "never, but sure"])
@pytest.mark.parametrize("target", TARGETS)
def test_a_draft_that_was_never_right_is_tried_less_in_the_next_answers(target: str, process: str) -> None:
    """Answers are short here, so that each feels the first tries."""
    machine, length = Machine(TARGETS[target]), 32
    pace = machine.known()
    lost = []
    for seed in range(40):
        text = make_text(process, length, seed)
        ours = throughput(Simulation(text, machine, length).paced(pace))
        lost.append(throughput(Simulation(text, machine, length).fixed(0, "model")) / ours - 1.0)
    assert np.mean(lost[30:]) < 0.6 * np.mean(lost[:10]) + 0.005
    assert np.mean(lost[:10]) < 0.25
