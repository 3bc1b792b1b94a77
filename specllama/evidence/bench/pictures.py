"""The figures of a report, with captions, and with descriptions for readers who cannot see them."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import NamedTuple

from specllama.stats import Stats

from . import plots
from .plots import mode_styles, png, report_style
from .rounds import Prediction, num_rounds, seconds_by_part
from .runs import ALL, BenchResult


class Picture(NamedTuple):
    """A figure of a report."""

    name: str
    title: str
    caption: str
    """How to read the figure."""
    alt: str
    """The content of the figure, in words and numbers."""
    png: bytes | None
    """The figure as a PNG file; None if there is nothing to draw."""

    @property
    def base64(self) -> str:
        """The PNG file as a page embeds it."""
        return base64.b64encode(self.png or b"").decode("ascii")


def pictures_of(result: BenchResult, rounds: Mapping[str, Stats], prediction: Prediction) -> list[Picture]:
    """All figures of a result. `rounds`: by mode, the statistics of its rounds."""
    styles = mode_styles(list(rounds))
    ratios = _listed({mode: f"{prediction.median_ratio(mode):.2f}" for mode in prediction.points})
    with report_style():
        return [
            Picture(
                "speedup",
                "Speedup by category",
                "A prompt's speedup is its tokens per second over those of plain decoding on the same prompt. A dot is "
                "the mean over prompts, a whisker the 95% bootstrap interval of that mean. Right of the line is "
                "faster.",
                f"Dot plot by category and mode. Mean speedup over all prompts: {_speedups(result)}.",
                png(plots.speedup_figure(result.summary, styles)),
            ),
            Picture(
                "acceptance",
                "Acceptance by position in the draft",
                "How often a drafted token is accepted, and with it all before it in its round.",
                f"Line plot, accepted over drafted from the first position on: {_acceptance(rounds)}.",
                png(plots.acceptance_figure(rounds, styles)),
            ),
            Picture(
                "round_time",
                "Where the time of a round goes",
                "A round is one decode by the target. A longer one pays when it gives enough tokens: what counts is "
                "the time of a token, below each name. Prompts are left out.",
                f"Stacked bars, milliseconds a round: {_round_times(rounds)}.",
                png(plots.round_time_figure(rounds)),
            ),
            Picture(
                "cost_curves",
                "What a batch of n tokens costs",
                "Decoding n tokens in one batch: median, and quartiles as a band, in milliseconds and over a batch of "
                "one. Where the right curve of the target is flat, verifying more tokens costs nothing.",
                f"Two line plots. {_costs(result)}.",
                png(plots.cost_figure(result.curves)),
            ),
            Picture(
                "prediction",
                "Predicted and measured speedup",
                "A dot is one prompt. The prediction is S = E / (γ c + v(γ+1)): tokens per round over what the round's "
                "drafts and batch cost by the curves above. Dots below the line: time goes elsewhere. "
                f"Measured over predicted, median: {ratios}.",
                f"Scatter plot with a diagonal. Median of measured over predicted speedup: {ratios}.",
                png(plots.prediction_figure(prediction.points, styles)),
            ),
        ]


def _listed(of_modes: Mapping[str, str]) -> str:
    return "; ".join(f"{mode} {words}" for mode, words in of_modes.items()) or "none"


def _speedups(result: BenchResult) -> str:
    rows = [row for row in result.summary if row.category == ALL and row.mode != "plain"]
    return _listed(
        {
            row.mode: f"{row.speedup_mean:.2f} ({row.speedup_low:.2f} to {row.speedup_high:.2f})"
            for row in rows
            if math.isfinite(row.speedup_mean)
        }
    )


def _acceptance(rounds: Mapping[str, Stats]) -> str:
    rates = {mode: of_mode.acceptance_rate_per_pos for mode, of_mode in rounds.items()}
    return _listed({mode: " ".join(f"{rate:.2f}" for rate in of_mode) for mode, of_mode in rates.items() if of_mode})


def _round_times(rounds: Mapping[str, Stats]) -> str:
    counts = {mode: num_rounds(of_mode) for mode, of_mode in rounds.items()}
    times = {mode: seconds_by_part(rounds[mode]) for mode, count in counts.items() if count}
    return _listed(
        {
            mode: ", ".join(f"{part} {1000 * seconds / counts[mode]:.3g}" for part, seconds in parts.items())
            for mode, parts in times.items()
        }
    )


def _costs(result: BenchResult) -> str:
    curves = [(name, curve, curve.sizes[0], curve.sizes[-1]) for name, curve in result.curves.items() if curve.sizes]
    return "; ".join(
        f"{name}: {1000 * curve.seconds(first):.3g} ms for {first}, {1000 * curve.seconds(last):.3g} ms for {last}"
        for name, curve, first, last in curves
    )
