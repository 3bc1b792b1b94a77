"""The figures of a report, in one style that does not depend on matplotlib's settings.

Each function whose name ends in `_figure` draws a figure, or returns None if there is nothing to draw.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence

import matplotlib
import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specllama.cost_curve import CostCurve
from specllama.stats import Stats

from .rounds import PARTS, num_rounds, seconds_by_part, tokens_per_round
from .runs import ALL, Row

WIDTH = 8.0
"""The width of all figures, in inches."""
GREY = "#5c5c5c"
TARGET = "#117733"
DRAFT = "#332288"
PART_COLOURS = {"draft": DRAFT, "verify": "#44AA99", "sample": "#DDCC77", "rollback": "#882255", "other": "#BBBBBB"}
"""Colours by part of a round. They are Paul Tol's muted scheme, which colour-blind readers can tell apart."""

# Okabe and Ito's colours, which colour-blind readers can tell apart, too. Seven colours and eight markers are 56 pairs.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = ("o", "s", "D", "^", "v", "P", "X", "h")
_DPI = 160
_STYLE = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.axisbelow": True,
    "grid.color": "#e0e0e0",
    "legend.frameon": False,
    "lines.markersize": 6,
}


@dataclasses.dataclass(frozen=True)
class ModeStyle:
    """How one mode is drawn."""

    colour: str
    marker: str


Styles = Mapping[str, ModeStyle]


def mode_styles(modes: Sequence[str]) -> dict[str, ModeStyle]:
    """A style for each mode, in this order; plain decoding is always grey."""
    speculative = [mode for mode in modes if mode != "plain"]
    styles = {
        mode: ModeStyle(_COLOURS[i % len(_COLOURS)], _MARKERS[i % len(_MARKERS)]) for i, mode in enumerate(speculative)
    }
    return {mode: styles.get(mode, ModeStyle(GREY, "o")) for mode in modes}


@contextlib.contextmanager
def report_style() -> Iterator[None]:
    """Use the report's style in place of the user's, and no warnings about characters that the font lacks."""
    with matplotlib.style.context(["default", _STYLE], after_reset=True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def new_figure(height: float) -> Figure:
    """An empty figure of the common width; `height` in inches."""
    return Figure(figsize=(WIDTH, height), layout="constrained")


def png(figure: Figure | None) -> bytes | None:
    """The figure as a PNG file, if there is one."""
    if figure is None:
        return None
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=_DPI, metadata={"Software": None})
    return file.getvalue()


def legend_above(figure: Figure, axes: Axes) -> None:
    """Put the legend above the axes, in as many columns as its texts allow."""
    handles, labels = axes.get_legend_handles_labels()
    room, sizes = 92, [len(label) + 6 for label in labels]  # in characters, six of them for the line and the gaps
    columns = len(labels) if sum(sizes) <= room else max(1, room // max(sizes))
    figure.legend(handles, labels, loc="outside upper center", ncols=columns)


def text(value: str, width: int = 26, lines: int = 2) -> str:
    """A name for matplotlib: in lines of at most `width` characters, where no `$` begins a formula."""
    whole = value.encode("utf-8", "replace").decode("utf-8")  # lone surrogates, which JSON can have, would be an error
    wrapped = textwrap.wrap(whole, width, max_lines=lines, placeholder=" …") or ["(no name)"]
    return "\n".join(wrapped).replace("$", r"\$")


def speedup_figure(rows: Sequence[Row], styles: Styles) -> Figure | None:
    """The mean speedup with its interval: a dot for each mode in each category. Plain decoding is the line at 1."""
    drawn = [row for row in rows if row.mode != "plain" and math.isfinite(row.speedup_mean)]
    categories = list(dict.fromkeys([ALL, *(row.category for row in drawn)]))
    if len(categories) == 2:  # the only category has all prompts
        categories = [ALL]
    modes = [mode for mode in styles if any(row.mode == mode for row in drawn)]
    if not modes:
        return None
    figure = new_figure(1.4 + len(categories) * max(0.34, 0.15 * len(modes) + 0.08))
    axes = figure.add_subplot()
    step = 0.8 / len(modes)
    for i, mode in enumerate(modes):
        of_mode = {row.category: row for row in drawn if row.mode == mode}
        at = [(y, of_mode[category]) for y, category in enumerate(categories) if category in of_mode]
        axes.errorbar(
            [row.speedup_mean for _, row in at],
            [y + (i - (len(modes) - 1) / 2) * step for y, _ in at],
            # By rounding, the mean of equal values can lie slightly outside of their interval.
            xerr=[
                [max(0.0, row.speedup_mean - row.speedup_low) for _, row in at],
                [max(0.0, row.speedup_high - row.speedup_mean) for _, row in at],
            ],
            fmt=styles[mode].marker,
            color=styles[mode].colour,
            elinewidth=1.5,
            label=text(mode, 40, 1),
        )
    for y in range(0, len(categories), 2):
        axes.axhspan(y - 0.5, y + 0.5, color="#f3f3f3", linewidth=0, zorder=0)
    if len(categories) > 1:
        axes.axhline(0.5, color=GREY, linewidth=0.8)  # below the row of all prompts
    axes.axvline(1.0, color=GREY, linewidth=1.2, zorder=1, label="plain decoding")
    axes.set_ylim(len(categories) - 0.5, -0.5)
    names = ["all prompts" if category == ALL else category for category in categories]
    axes.set_yticks(range(len(categories)), [text(name) for name in names])
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    axes.set_xlabel("speedup over plain decoding (mean over prompts, 95% interval)")
    legend_above(figure, axes)
    return figure


def acceptance_figure(rounds: Mapping[str, Stats], styles: Styles) -> Figure | None:
    """The share of accepted tokens by position in the draft: a line for each mode that drafted."""
    rates = {mode: of_mode.acceptance_rate_per_pos for mode, of_mode in rounds.items()}
    rates = {mode: of_mode for mode, of_mode in rates.items() if of_mode}
    if not rates:
        return None
    figure = new_figure(4.0)
    axes = figure.add_subplot()
    for mode, of_mode in rates.items():
        style = styles[mode]
        positions = range(1, len(of_mode) + 1)
        axes.plot(positions, of_mode, color=style.colour, marker=style.marker, alpha=0.85, label=text(mode, 40, 1))
    longest = max(map(len, rates.values()))
    axes.set_xlim(0.6, longest + 0.4)
    axes.set_ylim(0, 1.02)
    _whole_ticks(axes, longest, at_most=16)
    axes.grid()
    axes.set_xlabel("position in the draft")
    axes.set_ylabel("accepted / drafted")
    legend_above(figure, axes)
    return figure


def round_time_figure(rounds: Mapping[str, Stats]) -> Figure | None:
    """The milliseconds of a round, by what they are spent on: a bar for each mode."""
    drawn = {mode: of_mode for mode, of_mode in rounds.items() if num_rounds(of_mode)}
    if not drawn:
        return None
    figure = new_figure(1.5 + 0.6 * len(drawn))
    axes = figure.add_subplot()
    rows = list(drawn.values())
    totals = [1000 * sum(seconds_by_part(row).values()) / num_rounds(row) for row in rows]
    left = [0.0] * len(rows)
    for part in PARTS:
        widths = [1000 * seconds_by_part(row)[part] / num_rounds(row) for row in rows]
        bars = axes.barh(range(len(rows)), widths, left=left, height=0.62, color=PART_COLOURS[part], label=part)
        values = [f"{width:.{3 if width >= 1 else 2}g}" if width > 0.07 * max(totals) else "" for width in widths]
        axes.bar_label(bars, values, label_type="center", fontsize=9, color="white" if part == "draft" else "black")
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_ylim(len(rows) - 0.5, -0.5)
    labels = [
        f"{text(mode, 26, 1)}\n{tokens_per_round(row):.2f} tokens a round,\n{ms / tokens_per_round(row):.3g} ms a token"
        for (mode, row), ms in zip(drawn.items(), totals, strict=True)
    ]
    axes.set_yticks(range(len(rows)), labels, fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    axes.set_xlabel("milliseconds a round")
    legend_above(figure, axes)
    return figure


def cost_figure(curves: Mapping[str, CostCurve]) -> Figure | None:
    """T(n) of target and draft: median and quartiles, in milliseconds and over T(1)."""
    drawn = {name: curve for name, curve in curves.items() if curve.sizes}
    if not drawn:
        return None
    figure = new_figure(3.9)
    in_ms, relative = figure.subplots(1, 2)
    colours = {"target": (TARGET, "o"), "draft": (DRAFT, "s")}
    for name, curve in drawn.items():
        colour, marker = colours.get(name, (GREY, "D"))
        for axes, unit in ((in_ms, 1e-3), (relative, curve.at(1) if 1 in curve.samples else math.nan)):
            spread = [curve.spread(n) for n in curve.sizes]
            low, high = ([value / unit for value in side] for side in zip(*spread, strict=True))
            axes.fill_between(curve.sizes, low, high, color=colour, alpha=0.22, linewidth=0)
            values = [curve.seconds(n) / unit for n in curve.sizes]
            axes.plot(curve.sizes, values, color=colour, marker=marker, markersize=5, label=text(name, 40, 1))
    for axes, label in ((in_ms, "T(n) in milliseconds"), (relative, "T(n) / T(1)")):
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        _whole_ticks(axes, max(curve.sizes[-1] for curve in drawn.values()), at_most=8)
        axes.grid()
        axes.set_xlabel("n, tokens in the batch")
        axes.set_ylabel(label)
    legend_above(figure, in_ms)
    return figure


def prediction_figure(points: Mapping[str, Sequence[tuple[float, float]]], styles: Styles) -> Figure | None:
    """Measured against predicted speedup: a dot for each prompt. `points`: (predicted, measured), by mode."""
    drawn = {mode: of_mode for mode, of_mode in points.items() if of_mode}
    if not drawn:
        return None
    figure = new_figure(6.2)
    axes = figure.add_subplot()
    values = [value for of_mode in drawn.values() for point in of_mode for value in point]
    pad = 0.06 * (max(1.0, *values) - min(1.0, *values)) + 0.02
    limits = (min(1.0, *values) - pad, max(1.0, *values) + pad)
    axes.plot(limits, limits, color=GREY, linewidth=1.2, zorder=1, label="as predicted")
    axes.axhline(1.0, color=GREY, linewidth=0.8, linestyle=":", zorder=1)
    axes.axvline(1.0, color=GREY, linewidth=0.8, linestyle=":", zorder=1)
    for mode, of_mode in drawn.items():
        predicted, measured = zip(*of_mode, strict=True)
        style = styles[mode]
        axes.scatter(
            predicted, measured, s=28, color=style.colour, marker=style.marker, alpha=0.7, label=text(mode, 40, 1)
        )
    axes.set_xlim(limits)
    axes.set_ylim(limits)
    axes.set_aspect("equal")
    axes.grid()
    axes.set_xlabel("predicted speedup")
    axes.set_ylabel("measured speedup")
    legend_above(figure, axes)
    return figure


def _whole_ticks(axes: Axes, largest: int, at_most: int) -> None:
    step = max(1, math.ceil(largest / at_most))
    axes.set_xticks(range(step, largest + 1, step))
