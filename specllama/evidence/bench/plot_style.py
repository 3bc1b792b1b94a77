"""The style of figures: it does not depend on matplotlib's settings, and each mode has one colour and marker."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import textwrap
import warnings
from collections.abc import Iterator, Sequence

import matplotlib
import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

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
    whole = value.encode("utf-8", "replace").decode("utf-8")  # half a character, as JSON can have it, would be an error
    wrapped = textwrap.wrap(whole, width, max_lines=lines, placeholder=" …") or ["(no name)"]
    return "\n".join(wrapped).replace("$", r"\$")
