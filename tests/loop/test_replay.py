"""scripts/replay.py: what "auto" gains on recorded texts, by the real pace and tables of what batches cost."""

from __future__ import annotations

import itertools
import json
import statistics

import numpy as np
import pytest
import record_traces
import replay
from simulation import Machine

from specllama import _core_test as _test

FAST, STEEP = "Q8_0, kernels, Xeon (Sapphire Rapids)", "Q4_K_M, llama.cpp, EPYC (Zen 4)"


@pytest.mark.parametrize("machine", [FAST, STEEP])
def test_auto_gains_on_recorded_texts_and_no_more_than_is_possible(machine: str) -> None:
    sets = replay.read_traces(replay.TRACES)
    assert sum(map(len, sets.values())) > 40
    for traces in sets.values():
        gains = [without for without, _ in replay.speedups(machine, traces)]
        possible = [replay.oracle(machine, trace) for trace in traces]
        assert all(gain < 1.05 * most for gain, most in zip(gains, possible, strict=True)), "times are noisy"
        assert statistics.mean(gains) > (1.25 if machine == FAST else 0.99)
        assert min(gains) > 0.9


def test_an_oracle_drafts_what_will_be_accepted() -> None:
    """Five tokens that can be looked up, in a text of six: they are one batch."""
    recorded = {"category": "text", "prompt": 1, "model": "000000", "sure": [0] * 6, "agrees": "000000"}
    recorded |= {"match": [9, 10, 11, 12, 13, 0], "right": [5, 4, 3, 2, 1, 0], "disputed": "000000"}
    target = replay.machine(FAST).target
    assert replay.oracle(FAST, replay.Trace.of(recorded)) == pytest.approx(6 * target(1) / target(6))


@pytest.mark.long
@pytest.mark.parametrize("machine", [name for name in replay.TARGETS if ", kernels" in name])
def test_drafts_gain_among_several_texts_and_hardly_ever_lose(machine: str) -> None:
    """Two and eight at once, over as many without drafts."""
    sets = replay.read_traces(replay.TRACES)
    for max_parallel, mean in ((2, 1.1), (8, 1.0)):
        gains = {
            key: statistics.mean(replay.gain_together(machine, 2 * traces, max_parallel, seed) for seed in range(2))
            for key, traces in sets.items()
        }
        assert min(gains.values()) > 0.96, gains
        assert statistics.geometric_mean(gains.values()) > mean, gains


def test_a_constant_can_be_changed() -> None:
    """A pace that may draw one token in a round gains less where batches are cheap, and little can be copied."""
    traces = replay.read_traces(replay.TRACES)["qwen2.5-coder: Spec-Bench"]
    usual, short = (
        statistics.mean(gain for gain, _ in replay.speedups(FAST, traces, constants, most=16))
        for constants in ({}, {"most_drawn": 1.0})
    )
    assert short < 0.95 * usual
    with pytest.raises(ValueError, match="'drawn' is no constant of the pace"):
        _test.Pace({"drawn": 1.0})


def test_what_is_recorded_of_a_text() -> None:
    """The text repeats its prompt from the third token on, and leaves it at the sixth; the draft knows every other."""
    prompt, text = [1, 2, 3, 4, 5, 6, 7, 8], [9, 1, 2, 3, 4, 9, 9]
    drafted = [(token if i % 2 == 0 else 5, 0.5) for i, token in enumerate(text)]
    given = record_traces.Prompt("id", "kind", "text")
    found = json.loads(json.dumps(record_traces.trace(given, prompt, text, drafted)))
    assert found["prompt"] == len(prompt)
    assert found["model"] == "1010101"
    assert found["match"] == [0, 0, 0, 2, 3, 4, 0]
    assert found["right"][3] == 2, "3 and 4 are looked up, then 5, which is wrong"
    assert found["agrees"][3] == "1", "the draft says 5 there, too"
    trace = replay.Trace.of(found)
    assert trace.length == len(text)
    assert trace.text.right[3] == 2
    assert len(trace.text.right) == len(text) + replay.MOST + 1


def test_all_curves_rise() -> None:
    """But for the one known step of llama.cpp's kernels: a typing error would be a cheaper batch."""
    for name in replay.TARGETS:
        target = replay.machine(name).target
        costs = np.array([target(n) for n in range(1, 66)])
        assert costs[-1] < 40 * costs[0]
        dips = sum(after < 0.97 * before for before, after in itertools.pairwise(costs))
        assert dips <= (1 if "llama.cpp" in name else 0), name


def test_a_machine_of_the_table_is_what_the_simulation_takes() -> None:
    assert isinstance(replay.machine(FAST), Machine)
    assert replay.machine(FAST).target(1) == pytest.approx(0.119)
