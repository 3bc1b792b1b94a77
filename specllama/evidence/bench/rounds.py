"""The tokens and the costs of rounds, and the speedup that acceptance and the costs of batches predict."""

from __future__ import annotations

import dataclasses
import statistics

from specllama.cost_curve import CostCurve
from specllama.evidence.data import total
from specllama.stats import Stats

from .runs import BenchResult, Run

PARTS = ("draft", "verify", "sample", "rollback", "other")
"""The parts of a round's time. "other" is Python, stop strings and the reader of the stream."""


def num_rounds(stats: Stats) -> int:
    """The number of decodes by the target, without decodes of the prompt."""
    return sum(stats.num_rounds_per_gamma)


def tokens_per_round(stats: Stats) -> float:
    """E: the tokens per decode by the target; 0.0 without rounds."""
    return stats.num_round_tokens / num_rounds(stats) if num_rounds(stats) else 0.0


def seconds_by_part(stats: Stats) -> dict[str, float]:
    """The seconds of all rounds together, by ``PARTS``."""
    seconds = {part: float(getattr(stats, f"{part}_seconds")) for part in PARTS if part != "other"}
    generating = stats.total_seconds - stats.prompt_seconds
    return {**seconds, "other": max(0.0, generating - sum(seconds.values()))}


def predicted_speedup(stats: Stats, target: CostCurve, draft: CostCurve) -> float:
    """S = E / (gamma c + v(gamma+1)): tokens per round over what a round costs, in plain decodes of one token.

    E is the number of tokens per round, gamma the number of drafted tokens, c = T_draft(1) / T_target(1) the cost of
    drafting one, and v(n) = T_target(n) / T_target(1) the cost of verifying. If gamma varies, the cost is the mean over
    the rounds; a round that drafts nothing costs v(1) = 1.

    The source is the improvement factor of Leviathan et al. 2022 (arXiv 2211.17192, theorem 3.8 in section 3.3), which
    assumes that a batch costs as much as one token, v = 1. Here v is measured. Sampling, rollback and everything else
    outside of the two models is left out. So is the second token that a draft decodes after a round in which all tokens
    were accepted. So measured speedups are a little lower.

    Args:
        stats: statistics of one mode, on one prompt or on several.
        target: T(n) of the target, at least up to gamma + 1.
        draft: T(n) of the draft, at least T(1).

    Raises:
        ValueError: there are no rounds, or a batch is larger than all that were measured.
    """
    if not num_rounds(stats):
        raise ValueError("nothing was generated: there is no speedup to predict")
    counts = enumerate(stats.num_rounds_per_gamma)
    cost = sum(count * round_cost(gamma, target, draft) for gamma, count in counts if count)
    return stats.num_round_tokens / cost


def round_cost(gamma: int, target: CostCurve, draft: CostCurve | None) -> float:
    """The cost of a round that drafts gamma tokens, in plain decodes of one token: gamma c + v(gamma+1).

    Args:
        gamma: the number of drafted tokens; 0 is a round of plain decoding.
        target: T(n) of the target, at least up to gamma + 1.
        draft: T(n) of the draft, at least T(1); None for a draft that decodes nothing, c = 0.

    Raises:
        ValueError: the batch is larger than all that were measured.
    """
    one = target.at(1)
    c = 0.0 if draft is None else draft.at(1) / one
    return gamma * c + target.at(gamma + 1) / one


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The predicted and the measured speedups of a benchmark.

    Attributes:
        points: by mode, (predicted, measured) for each prompt; plain decoding is left out.
        problems: which speedups could not be predicted, and why.
    """

    points: dict[str, list[tuple[float, float]]]
    problems: list[str]

    @classmethod
    def of(cls, result: BenchResult) -> Prediction:
        """Predict for every mode and prompt. Without both curves nothing is predicted."""
        points: dict[str, list[tuple[float, float]]] = {}
        problems: dict[str, None] = {}
        if {"target", "draft"} <= result.curves.keys():
            for mode, runs in _runs_by_mode_and_prompt(result):
                stats = total(run.stats for run in runs)
                try:
                    predicted = predicted_speedup(stats, result.curves["target"], result.curves["draft"])
                except ValueError as error:
                    problems[f"There is no prediction for some prompts of {mode}: {error}."] = None
                    continue
                measured = statistics.fmean(run.speedup for run in runs if run.speedup is not None)
                points.setdefault(mode, []).append((predicted, measured))
        return cls(points, list(problems))

    def median_ratio(self, mode: str) -> float:
        """The median of measured / predicted over the prompts of a mode."""
        return statistics.median(measured / predicted for predicted, measured in self.points[mode])


def _runs_by_mode_and_prompt(result: BenchResult) -> list[tuple[str, list[Run]]]:
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in result.runs:
        if run.mode != "plain" and run.speedup is not None:
            groups.setdefault((run.mode, run.prompt_id), []).append(run)
    return [(mode, runs) for (mode, _), runs in groups.items()]
