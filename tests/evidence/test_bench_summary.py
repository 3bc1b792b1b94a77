"""The arithmetic of bench on runs whose answers are known."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from needed import imported

from specllama.evidence.bench import Row, Run
from specllama.evidence.bench.runs import summarise
from specllama.stats import Stats


def made(
    prompt: str,
    mode: str,
    speedup: float | None,
    *,
    category: str = "a",
    repeat: int = 0,
    tokens: int = 10,
    **stats: float,
) -> Run:
    """A run of 2 s for the prompt and, unless told otherwise, 10 s of decoding."""
    known: dict[str, Any] = {"num_tokens": tokens, "prompt_seconds": 2.0, "total_seconds": 12.0, **stats}
    return Run(
        prompt_id=prompt,
        category=category,
        mode=mode,
        repeat=repeat,
        speedup=speedup,
        end_to_end_speedup=None if speedup is None else speedup / 2,
        text_equal_to_plain=True,
        stats=Stats(**known),
    )


def only(rows: list[Row], mode: str, category: str = "all") -> Row:
    [row] = [row for row in rows if (row.mode, row.category) == (mode, category)]
    return row


def test_ratios_are_means_over_prompts() -> None:
    speedups = {"p": 1.0, "q": 2.0, "r": 6.0}
    row = only(summarise([made(prompt, "auto", value) for prompt, value in speedups.items()]), "auto")
    assert row.num_prompts == 3
    assert row.speedup_mean == pytest.approx(3.0)
    assert row.speedup_median == pytest.approx(2.0)
    assert row.end_to_end_mean == pytest.approx(1.5)
    assert (row.worst_prompt, row.worst_speedup) == ("p", 1.0)
    assert 1.0 <= row.speedup_low < 3.0 < row.speedup_high <= 6.0


def test_a_prompts_speedup_is_the_mean_of_its_repeats() -> None:
    runs = [made("p", "auto", value, repeat=repeat) for repeat, value in enumerate((1.0, 2.0, 3.0))]
    runs += [made("q", "auto", 4.0), made("r", "auto", 1.5)]
    row = only(summarise(runs), "auto")
    assert row.num_prompts == 3
    assert row.speedup_mean == pytest.approx((2.0 + 4.0 + 1.5) / 3)  # not over the five runs
    assert row.speedup_median == pytest.approx(2.0)
    assert row.worst_prompt == "r"  # though one repeat of p was slower


def test_totals_are_ratios_of_sums() -> None:
    short = {"num_tokens": 30, "draft_seconds": 1.0, "verify_seconds": 6.0, "sample_seconds": 0.5}
    long = {"num_tokens": 10, "draft_seconds": 9.0, "verify_seconds": 14.0, "sample_seconds": 1.5}
    drafts = {"num_drafts": 10, "num_draft_tokens": 40, "num_accepted_tokens": 20}
    fewer_drafts = {"num_drafts": 5, "num_draft_tokens": 10, "num_accepted_tokens": 10}
    runs = [
        made("p", "auto", 1.0, total_seconds=12.0, **short, **drafts),
        made("q", "auto", 1.0, total_seconds=32.0, **long, **fewer_drafts),
    ]
    row = only(summarise(runs), "auto")
    assert row.num_tokens == 40
    assert row.tokens_per_second == pytest.approx(40 / (10 + 30))
    assert row.acceptance_rate == pytest.approx(30 / 50)
    assert row.mean_acceptance_length == pytest.approx(1 + 30 / 15)
    assert (row.draft_share, row.verify_share, row.sample_share) == pytest.approx((10 / 40, 20 / 40, 2 / 40))


def test_nothing_drafted_and_no_time_are_no_division_by_zero() -> None:
    row = only(summarise([made("p", "plain", 1.0, total_seconds=2.0)]), "plain")
    assert row.acceptance_rate == row.tokens_per_second == row.draft_share == 0.0
    assert row.mean_acceptance_length == 1.0
    assert all(math.isfinite(value) for value in dataclasses.astuple(row) if isinstance(value, float))


def test_rows_by_category_then_all() -> None:
    assert [row.category for row in summarise([made("p", "auto", 1.0, category="code")])] == ["all"]
    runs = [
        made(prompt, mode, 1.0 if mode == "plain" else speedup, category=category)
        for prompt, category, speedup in (("p", "code", 2.0), ("q", "story", 0.5), ("r", "code", 4.0))
        for mode in ("plain", "auto")
    ]
    rows = summarise(runs)
    modes, categories = ["plain", "auto"] * 3, ["code"] * 2 + ["story"] * 2 + ["all"] * 2
    assert [(row.mode, row.category) for row in rows] == list(zip(modes, categories, strict=True))
    assert only(rows, "auto", "code").speedup_mean == pytest.approx(3.0)
    assert only(rows, "auto", "story").speedup_mean == pytest.approx(0.5)
    assert only(rows, "auto").speedup_mean == pytest.approx(6.5 / 3)  # prompts count alike, not categories
    assert [row.speedup_mean for row in rows if row.mode == "plain"] == [1.0] * 3


def test_runs_without_plain_are_left_out() -> None:
    runs = [made("p", "plain", 1.0), made("p", "auto", 2.0), made("q", "auto", None, num_draft_tokens=100)]
    row = only(summarise(runs), "auto")
    assert (row.num_prompts, row.num_tokens, row.speedup_mean) == (1, 10, 2.0)
    assert summarise(runs[2:]) == []
    assert summarise([]) == []


def interval(values: Iterable[float]) -> tuple[float, float]:
    """Of the mean of these speedups, each of another prompt."""
    row = only(summarise([made(str(i), "auto", float(value)) for i, value in enumerate(values)]), "auto")
    return row.speedup_low, row.speedup_high


def test_the_interval_of_equal_values_has_no_width() -> None:
    assert interval([1.7]) == (1.7, 1.7)
    assert interval([1.0] * 24) == (1.0, 1.0)
    runs = [made("p", "auto", 1.7, repeat=repeat) for repeat in range(3)]
    verdicts = (True, False, None)
    runs = [dataclasses.replace(run, text_equal_to_plain=equal) for run, equal in zip(runs, verdicts, strict=True)]
    row = only(summarise(runs), "auto")
    assert row.speedup_low == row.speedup_high == row.speedup_mean == pytest.approx(1.7)
    assert (row.num_texts_equal, row.num_texts_compared) == (1, 2)


@pytest.mark.parametrize("count", [30, 2000])
def test_the_interval_is_the_one_of_scipy_each_time(count: int) -> None:
    stats = imported("scipy.stats")
    values = np.random.default_rng(6).gamma(4.0, 0.4, count)
    theirs = stats.bootstrap(
        (values,), np.mean, n_resamples=5000, batch=500, method="percentile", random_state=np.random.default_rng(1)
    ).confidence_interval
    # Ends that rest on 5000 resamples vary by about 0.03 of the standard error.
    error = values.std() / math.sqrt(len(values))
    assert interval(values) == pytest.approx((theirs.low, theirs.high), abs=0.15 * error)
    assert interval(values) == interval(values.copy())


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(7)
    covered = 0
    for _ in range(200):
        low, high = interval(generator.normal(1.5, 0.4, 24))
        covered += low <= 1.5 <= high
    # The percentile bootstrap of 24 values covers 93%; binomial with 200 trials, 4 standard deviations.
    assert 0.93 - 4 * math.sqrt(0.93 * 0.07 / 200) <= covered / 200 <= 0.995
