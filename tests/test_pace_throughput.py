"""Pace against simulated targets: its throughput beside plain decoding and the best fixed gamma in hindsight.

Each bound leaves a margin to the worst that was measured over twenty seeds; the comments say how much.
"""

from __future__ import annotations

import numpy as np
import pytest
from simulation import TARGETS, Machine, Simulation, Text, make_text, throughput

from specllama import _core

LENGTH = 256
SEEDS = range(5)
GAMMAS = (0, 1, 2, 3, 4, 6, 8, 12)


def fixed(text: Text, machine: Machine, gamma: int, length: int = LENGTH) -> float:
    """Tokens per second with gamma drafted tokens in every round; 0 is plain decoding."""
    return throughput(Simulation(text, machine, length).fixed(gamma))


def paced(text: Text, machine: Machine, pace: _core.Pace, length: int = LENGTH, may_drop: bool = False) -> float:
    """The same under auto."""
    return throughput(Simulation(text, machine, length, may_drop=may_drop).paced(pace))


def against_best_fixed(
    target: str, process: str, *, known: bool, repeats: bool = False, may_drop: bool = False
) -> float:
    """Mean throughput over all texts by that of the fixed gamma which is best for all of them together."""
    machine = Machine(TARGETS[target])
    texts = [make_text(process, LENGTH, seed, repeats) for seed in SEEDS]
    paces = [machine.known() if known else _core.Pace() for _ in texts]
    ours = np.mean([paced(text, machine, pace, may_drop=may_drop) for text, pace in zip(texts, paces, strict=True)])
    return float(ours / max(np.mean([fixed(text, machine, gamma) for text in texts]) for gamma in GAMMAS))


@pytest.mark.parametrize("may_drop", [False, True])
@pytest.mark.parametrize("process", ["constant", "often wrong", "pair", "bursty", "collapsing"])
@pytest.mark.parametrize("target", TARGETS)
def test_near_the_best_fixed_number_of_tokens(target: str, process: str, may_drop: bool) -> None:
    assert against_best_fixed(target, process, known=True, may_drop=may_drop) > 0.9


@pytest.mark.parametrize("target", TARGETS)
def test_near_it_where_nearly_everything_is_right(target: str) -> None:
    """A fixed gamma of 12 needs not find out that it pays."""
    assert against_best_fixed(target, "always", known=True) > 0.85


@pytest.mark.parametrize("process", ["pair", "never"])
@pytest.mark.parametrize("target", TARGETS)
def test_faster_than_any_fixed_number_where_texts_repeat_themselves(target: str, process: str) -> None:
    """But where each token costs a decode there is nothing to gain, and little to lose."""
    assert against_best_fixed(target, process, known=True, repeats=True) > (0.97 if target == "linear" else 1.1)


@pytest.mark.parametrize("process", ["constant", "pair"])
@pytest.mark.parametrize("target", TARGETS)
def test_a_curve_that_is_not_known_yet(target: str, process: str) -> None:
    """What finding out costs in the first text."""
    assert against_best_fixed(target, process, known=False) > 0.85


@pytest.mark.parametrize("may_drop", [False, True])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("target", TARGETS)
def test_a_draft_that_is_never_right_costs_two_percent_at_most(target: str, known: bool, may_drop: bool) -> None:
    machine = Machine(TARGETS[target])
    for seed in SEEDS:
        text = make_text("never", LENGTH, seed)
        pace = machine.known() if known else _core.Pace()
        assert paced(text, machine, pace, may_drop=may_drop) > 0.98 * fixed(text, machine, 0)


@pytest.mark.parametrize("target", TARGETS)
def test_a_draft_that_is_sure_and_never_right(target: str) -> None:
    """What other texts have taught of its confidence has to be unlearned."""
    machine = Machine(TARGETS[target])
    for seed in SEEDS:
        text = make_text("never, but sure", LENGTH, seed)
        assert paced(text, machine, machine.known()) > 0.96 * fixed(text, machine, 0)
