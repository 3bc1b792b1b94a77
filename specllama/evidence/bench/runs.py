"""The result of a benchmark: its runs, and rows made of them with ratios to plain decoding and their intervals."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from specllama.evidence.data import Data, Result, total
from specllama.stats import ratio

if TYPE_CHECKING:
    from specllama.cost_curve import CostCurve
    from specllama.stats import Stats

ALL = "all"
"""The category of the rows over every prompt."""
_RESAMPLES = 5000
_SEED = 0  # fixed, so that the same runs give the same interval
_BATCH = 1 << 22  # numbers drawn at a time


@dataclasses.dataclass(frozen=True)
class Run(Data):
    """One answer of one mode to one prompt."""

    prompt_id: str
    category: str
    mode: str
    repeat: int
    """The number of the repeat, from 0."""
    speedup: float | None
    """Tokens per second divided by plain decoding's, for the same prompt and repeat; None if that was not measured."""
    end_to_end_speedup: float | None
    """The speedup with the time of the prompt, which the draft decodes, too; None if it was not measured."""
    text_equal_to_plain: bool | None
    """Whether the text is plain decoding's; None if it may rightly differ: sampling without a coupled seed."""
    stats: Stats

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second, without the time of the prompt."""
        return self.stats.tokens_per_second


@dataclasses.dataclass(frozen=True)
class Row(Data):
    """The figures of one mode on the prompts of one category. A prompt's speedup is the mean of its repeats."""

    mode: str
    category: str
    """The category; ``all`` stands for all prompts."""
    num_prompts: int
    num_tokens: int
    tokens_per_second: float
    """All tokens divided by all seconds, without prompts."""
    speedup_mean: float
    """The mean of the speedups, over prompts."""
    speedup_median: float
    speedup_low: float
    """The lower end of the 95% bootstrap interval of the mean, over prompts."""
    speedup_high: float
    """The upper end of this interval."""
    end_to_end_mean: float
    """The mean of the speedups with the time of prompts, over prompts."""
    acceptance_rate: float
    mean_acceptance_length: float
    draft_share: float
    """The share of decoding by the draft in the time without prompts. Time in no share is "other"."""
    verify_share: float
    """The share of decoding by the target."""
    sample_share: float
    """The share of sampler chains, drawing, and acceptance rules."""
    worst_prompt: str
    """The prompt with the lowest speedup."""
    worst_speedup: float
    """The speedup of the worst prompt."""
    num_texts_equal: int
    """The number of answers with plain decoding's tokens."""
    num_texts_compared: int
    """The number of answers that should have plain decoding's tokens."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchResult(Result):
    """The result of a benchmark."""

    runs: list[Run]
    """All answers, in the order in which they were made."""
    summary: list[Row]
    """A row for each mode and category, and one for each mode over all prompts."""
    curves: dict[str, CostCurve] = dataclasses.field(default_factory=dict)
    """What a batch of n tokens costs, by model: ``target``, ``draft``."""
    notes: list[str] = dataclasses.field(default_factory=list)
    """What a reader of the figures must know."""


def summarise(runs: Sequence[Run]) -> list[Row]:
    """A row for each category and mode, and for all prompts together (last, and alone if there is one category).

    Runs without a speedup, whose plain counterpart was not measured, are left out.
    """
    counted = [run for run in runs if run.speedup is not None]
    categories = list(dict.fromkeys(run.category for run in counted))
    rows = []
    for category in [*(categories if len(categories) > 1 else []), ALL]:
        for mode in dict.fromkeys(run.mode for run in runs):
            chosen = [run for run in counted if run.mode == mode and category in (run.category, ALL)]
            if chosen:
                rows.append(_row(mode, category, chosen))
    return rows


def interval(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    """The 95% bootstrap interval (percentiles) of the mean of values [n]. For one value both ends are this value."""
    count = len(values)
    if count == 1:
        return float(values[0]), float(values[0])
    generator = np.random.default_rng(_SEED)
    rows = max(1, _BATCH // count)
    means = [
        values[generator.integers(0, count, (min(rows, _RESAMPLES - start), count))].mean(axis=1)
        for start in range(0, _RESAMPLES, rows)
    ]
    low, high = np.quantile(np.concatenate(means), (0.025, 0.975))
    return float(low), float(high)


def _row(mode: str, category: str, runs: list[Run]) -> Row:
    speedups = by_prompt((run.prompt_id, run.speedup or 0.0) for run in runs)
    end_to_end = by_prompt((run.prompt_id, run.end_to_end_speedup or 0.0) for run in runs)
    values = np.array(list(speedups.values()))
    low, high = interval(values)
    worst = min(speedups, key=speedups.__getitem__)
    stats = total(run.stats for run in runs)
    generating = stats.total_seconds - stats.prompt_seconds
    compared = [run.text_equal_to_plain for run in runs if run.text_equal_to_plain is not None]
    return Row(
        mode=mode,
        category=category,
        num_prompts=len(speedups),
        num_tokens=stats.num_tokens,
        tokens_per_second=stats.tokens_per_second,
        speedup_mean=float(values.mean()),
        speedup_median=float(np.median(values)),
        speedup_low=low,
        speedup_high=high,
        end_to_end_mean=float(np.mean(list(end_to_end.values()))),
        acceptance_rate=stats.acceptance_rate,
        mean_acceptance_length=stats.mean_acceptance_length,
        draft_share=ratio(stats.draft_seconds, generating),
        verify_share=ratio(stats.verify_seconds, generating),
        sample_share=ratio(stats.sample_seconds, generating),
        worst_prompt=worst,
        worst_speedup=speedups[worst],
        num_texts_equal=sum(compared),
        num_texts_compared=len(compared),
    )


def by_prompt(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    """By prompt, the mean of its values. `values`: (name of the prompt, value) for each repeat."""
    found: dict[str, list[float]] = {}
    for prompt, value in values:
        found.setdefault(prompt, []).append(value)
    return {prompt: sum(repeats) / len(repeats) for prompt, repeats in found.items()}
