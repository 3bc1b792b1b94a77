"""What a benchmark measured, as data."""

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
    """One answer: one mode on one prompt."""

    prompt_id: str
    category: str
    mode: str
    repeat: int
    """0 for the first."""
    speedup: float | None
    """Tokens per second over those of plain decoding, same prompt and repeat; None if that was not measured."""
    end_to_end_speedup: float | None
    """The same with the prompt, which the draft decodes, too."""
    text_equal_to_plain: bool | None
    """None where the text may rightly differ: sampling without a coupled seed."""
    stats: Stats

    @property
    def tokens_per_second(self) -> float:
        """Without the prompt."""
        return self.stats.tokens_per_second


@dataclasses.dataclass(frozen=True)
class Row(Data):
    """One mode on the prompts of one category. A prompt's speedup is the mean of its repeats."""

    mode: str
    category: str
    """``all`` is every prompt."""
    num_prompts: int
    num_tokens: int
    tokens_per_second: float
    """All tokens over all seconds, prompts left out."""
    speedup_mean: float
    """Over prompts."""
    speedup_median: float
    speedup_low: float
    """Lower end of the 95% bootstrap interval of the mean, over prompts."""
    speedup_high: float
    """Its upper end."""
    end_to_end_mean: float
    """Of the speedups with the prompt included, over prompts."""
    acceptance_rate: float
    mean_acceptance_length: float
    draft_share: float
    """Of the generating seconds, prompts left out: decoding by the draft. What no share counts is "other"."""
    verify_share: float
    """Decoding by the target."""
    sample_share: float
    """Sampler chains, drawing, and acceptance rules."""
    worst_prompt: str
    """The prompt with the lowest speedup."""
    worst_speedup: float
    """Its speedup."""
    num_texts_equal: int
    """Answers with plain decoding's tokens."""
    num_texts_compared: int
    """Answers that should have them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchResult(Result):
    """Everything a benchmark found."""

    runs: list[Run]
    """All answers, in the order in which they were made."""
    summary: list[Row]
    """A row for each mode and category, and one for each mode over all prompts."""
    curves: dict[str, CostCurve] = dataclasses.field(default_factory=dict)
    """What a batch of n tokens costs, by model: ``target``, ``draft``."""
    notes: list[str] = dataclasses.field(default_factory=list)
    """What a reader of the figures must know."""
