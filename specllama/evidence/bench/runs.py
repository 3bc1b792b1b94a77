"""The measurements of a benchmark, as data."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from specllama.evidence.data import Data, Result

if TYPE_CHECKING:
    from specllama.cost_curve import CostCurve
    from specllama.stats import Stats

ALL = "all"
"""The category of the rows over every prompt."""


@dataclasses.dataclass(frozen=True)
class Run(Data):
    """One answer of one mode to one prompt."""

    prompt_id: str
    category: str
    mode: str
    repeat: int
    """The number of the repeat, from 0."""
    speedup: float | None
    """Tokens per second over those of plain decoding, for the same prompt and repeat; None if that was not measured."""
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
    """All tokens over all seconds, without prompts."""
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
    """The share of decoding by the draft in the time without prompts. What no share counts is "other"."""
    verify_share: float
    """The share of decoding by the target."""
    sample_share: float
    """The share of sampler chains, drawing, and acceptance rules."""
    worst_prompt: str
    """The prompt with the lowest speedup."""
    worst_speedup: float
    """The speedup of this prompt."""
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
