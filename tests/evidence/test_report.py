"""The report: a page that needs nothing but itself, and figures that show what was measured."""

from __future__ import annotations

import base64
import dataclasses
import html.parser
import io
import os
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import synthetic_bench as synthetic
from PIL import Image

from specllama.evidence.bench import plots
from specllama.evidence.bench.page import require_folder, require_plotting, write_report
from specllama.evidence.bench.plots import GREY, ModeStyle, mode_styles, report_style
from specllama.evidence.bench.rounds import PARTS, num_rounds, seconds_by_part
from specllama.evidence.bench.runs import ALL, BenchResult
from specllama.evidence.data import total
from specllama.stats import Stats

pytestmark = pytest.mark.long

FIGURES = ["acceptance.png", "cost_curves.png", "prediction.png", "round_time.png", "speedup.png"]
WHOLE = sorted([*FIGURES, "report.html"])
VOID = {"meta", "link", "img"}
HOSTILE = "<script>alert('x')</script> & $\\frac$ \"quoted\" 数学"


class Page(html.parser.HTMLParser):
    """What a report says, and whether its tags are balanced."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.tags: list[str] = []
        self.links: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(self.source)
        self.text = " ".join(self.text.split())
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action", "data")]
        if tag == "img":
            self.images.append(dict(attrs))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def result() -> BenchResult:
    """Five modes over three categories."""
    return synthetic.bench_result(synthetic.bench_runs(categories=("code", "maths", "story")), notes=["a <note>"])


@pytest.fixture(scope="module")
def folder(result: BenchResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its report."""
    folder = tmp_path_factory.mktemp("bench") / "new" / "report"
    assert write_report(result, folder) == folder / "report.html"
    return folder


def rounds_of(result: BenchResult) -> dict[str, Stats]:
    modes = dict.fromkeys(run.mode for run in result.runs)
    return {mode: total(run.stats for run in result.runs if run.mode == mode) for mode in modes}


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_figures_are_images(folder: Path) -> None:
    assert files_in(folder) == WHOLE
    for name in FIGURES:
        with Image.open(folder / name) as image:
            image.load()
            assert image.format == "PNG"
            assert image.width == 1280
            assert 250 < image.height < 4000
            pixels = image.convert("RGB")
        assert (np.asarray(pixels)[:4] == 255).all()  # a white margin: nothing is cut off at the top
        assert len(pixels.getcolors(1 << 24)) > 20


def test_page_needs_nothing_else(folder: Path) -> None:
    page = Page(folder / "report.html")
    assert page.source.startswith("<!DOCTYPE html>")
    names = ("speedup", "acceptance", "round_time", "cost_curves", "prediction")
    embedded = [base64.b64decode(str(image["src"]).removeprefix("data:image/png;base64,")) for image in page.images]
    assert embedded == [(folder / f"{name}.png").read_bytes() for name in names]
    assert all(link.startswith("data:") for link in page.links)
    assert not {"script", "iframe", "object"} & set(page.tags)
    assert not [outside for outside in ("http:", "https:", "@import", "url(") if outside in page.source]


def test_page_can_be_read_without_seeing_it(folder: Path, result: BenchResult) -> None:
    page = Page(folder / "report.html")
    row = next(row for row in result.summary if (row.mode, row.category) == ("block:4", ALL))
    assert all(len(str(image["alt"])) > 40 for image in page.images)
    speedup = f"block:4 {row.speedup_mean:.2f} ({row.speedup_low:.2f} to {row.speedup_high:.2f})"
    assert speedup in str(page.images[0]["alt"])
    assert page.tags.count("h1") == 1
    assert page.tags.index("h1") < page.tags.index("h2")
    assert {"main", "header", "figure", "figcaption", "table"} <= set(page.tags)


def test_page_says_what_was_measured(folder: Path, result: BenchResult) -> None:
    text = Page(folder / "report.html").text
    for row in result.summary:
        for value in (row.speedup_mean, row.tokens_per_second):
            assert f"{value:.2f}" in text
        if row.mode != "plain":
            assert f"{row.speedup_low:.2f} – {row.speedup_high:.2f}" in text
            assert f"{row.worst_prompt} ({row.worst_speedup:.2f})" in text
    best = max((row for row in result.summary if row.category == ALL), key=lambda row: row.speedup_mean)
    assert f"Fastest in the mean: {best.mode}, {best.speedup_mean:.2f} times plain decoding" in text
    assert "a <note>" in text
    assert 'A CPU <fast> & "quoted"' in text
    assert "Qwen2.5 Coder 1.5B Instruct, qwen2 1.5B F16" in text
    assert "target size 3.00 GiB" in text
    assert "seed –" in text
    assert str(result.settings["command"]) in text
    assert "255.00" in text  # T(5) of the target
    assert "interrupted" not in text


def test_speedup_figure(result: BenchResult) -> None:
    modes = [mode for mode in synthetic.MODES if mode != "plain"]
    figure = plots.speedup_figure(result.summary, mode_styles(synthetic.MODES))
    assert figure is not None
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["all prompts", "code", "maths", "story"]
    assert [container.get_label() for container in axes.containers] == modes
    for mode, container in zip(modes, axes.containers, strict=True):
        rows = {row.category: row for row in result.summary if row.mode == mode}
        in_order = [rows[category] for category in (ALL, "code", "maths", "story")]
        dots, _, (whiskers,) = container
        assert dots.get_xdata() == pytest.approx([row.speedup_mean for row in in_order])
        ends = [segment[:, 0] for segment in whiskers.get_segments()]
        assert np.array(ends) == pytest.approx(np.array([(row.speedup_low, row.speedup_high) for row in in_order]))
    heights = [float(y) for container in axes.containers for y in container[0].get_ydata()]
    assert min(np.diff(sorted(heights))) > 0.15  # no dot covers another


def test_acceptance_figure(result: BenchResult) -> None:
    rounds = rounds_of(result)
    figure = plots.acceptance_figure(rounds, mode_styles(synthetic.MODES))
    assert figure is not None
    lines = {str(line.get_label()): line for line in figure.axes[0].get_lines()}
    assert list(lines) == [mode for mode in synthetic.MODES if mode != "plain"]
    for mode, line in lines.items():
        assert line.get_ydata() == pytest.approx(rounds[mode].acceptance_rate_per_pos)
        assert list(line.get_xdata()) == list(range(1, len(rounds[mode].num_draft_tokens_per_pos) + 1))


def test_round_time_figure(result: BenchResult) -> None:
    rounds = rounds_of(result)
    figure = plots.round_time_figure(rounds)
    assert figure is not None
    axes = figure.axes[0]
    assert tuple(container.get_label() for container in axes.containers) == PARTS
    for i, of_mode in enumerate(rounds.values()):
        widths = [container[i].get_width() for container in axes.containers]
        expected = [1000 * seconds / num_rounds(of_mode) for seconds in seconds_by_part(of_mode).values()]
        assert widths == pytest.approx(expected)
        assert axes.containers[-1][i].get_x() + widths[-1] == pytest.approx(sum(expected))
    plain = axes.get_yticklabels()[0].get_text()
    assert plain.startswith("plain\n1.00 tokens a round")


def test_cost_figure(result: BenchResult) -> None:
    figure = plots.cost_figure(result.curves)
    assert figure is not None
    in_ms, relative = ({str(line.get_label()): line for line in axes.get_lines()} for axes in figure.axes)
    assert in_ms["target"].get_ydata() == pytest.approx(synthetic.TARGET_MS)
    assert in_ms["draft"].get_ydata() == pytest.approx(synthetic.DRAFT_MS)
    assert relative["draft"].get_ydata() == pytest.approx([ms / 30 for ms in synthetic.DRAFT_MS])


def test_prediction_figure() -> None:
    points = {"block:4": [(1.2, 1.1), (2.0, 1.9)], "auto": [(0.8, 0.7)]}
    figure = plots.prediction_figure(points, mode_styles(["auto", "block:4"]))
    assert figure is not None
    axes = figure.axes[0]
    drawn = {str(dots.get_label()): np.asarray(dots.get_offsets()).tolist() for dots in axes.collections}
    assert drawn == {mode: [list(point) for point in of_mode] for mode, of_mode in points.items()}
    assert axes.get_xlim() == axes.get_ylim()


def test_a_lookups_acceptance_is_shown(tmp_path: Path) -> None:
    """It costs no time of a draft model's."""
    runs = [
        dataclasses.replace(run, stats=dataclasses.replace(run.stats, draft_seconds=0.0))
        for run in synthetic.bench_runs(("plain", "block:4"), ("code",), prompts=1)
    ]
    result = synthetic.bench_result(runs)
    row = next(row for row in result.summary if row.mode == "block:4")
    assert row.draft_share == 0 and row.acceptance_rate > 0
    source = Page(write_report(result, tmp_path)).source
    assert f"<td>{row.acceptance_rate:.0%}</td>" in source


def test_no_mode_is_faster(tmp_path: Path) -> None:
    runs = synthetic.bench_runs(("plain", "block:4"), ("code",), prompts=1)
    slower = [dataclasses.replace(run, speedup=0.8) if run.mode == "block:4" else run for run in runs]
    text = Page(write_report(synthetic.bench_result(slower), tmp_path)).text
    assert "No mode is faster than plain decoding in the mean. The nearest is block:4, 0.80 times" in text


@pytest.mark.parametrize("interrupted", [True, False])
def test_no_runs(tmp_path: Path, interrupted: bool) -> None:
    notes = ["interrupted: 0 of 30 runs are done"] if interrupted else []
    result = synthetic.bench_result([], curves=False, interrupted=interrupted, notes=notes)
    page = Page(write_report(result, tmp_path))
    assert files_in(tmp_path) == ["report.html"]
    assert "No run was done" in page.text
    assert ("0 of 30 runs" in page.text) == interrupted
    assert ("interrupted" in page.text) == interrupted
    assert "Fastest" not in page.text


def test_interrupted_after_some_runs(tmp_path: Path) -> None:
    runs = synthetic.bench_runs(("plain", "block:4"), ("code",), prompts=1)
    # The turn went the other way: block:4 is done, its plain counterpart is not.
    alone = dataclasses.replace(runs[1], prompt_id="code/1", speedup=None, end_to_end_speedup=None)
    page = Page(write_report(synthetic.bench_result([*runs, alone], interrupted=True), tmp_path))
    assert "What speculation gains (interrupted)" in page.text
    assert len(page.images) == 5


def test_one_prompt_of_one_category(tmp_path: Path) -> None:
    result = synthetic.bench_result(synthetic.bench_runs(("plain", "block:4"), ("code",), prompts=1))
    page = Page(write_report(result, tmp_path))
    assert files_in(tmp_path) == WHOLE
    assert "1 prompt)" in page.text
    assert "By category" not in page.text
    figure = plots.speedup_figure(result.summary, mode_styles(["plain", "block:4"]))
    assert figure is not None
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["all prompts"]


def test_thirteen_categories_get_their_room(tmp_path: Path) -> None:
    write_report(synthetic.bench_result(synthetic.bench_runs(prompts=1, num_tokens=32), curves=False), tmp_path)
    with Image.open(tmp_path / "speedup.png") as image:
        assert image.height / image.width > 1  # dots of five modes in 14 rows


def test_nothing_drafted(tmp_path: Path) -> None:
    page = Page(write_report(synthetic.bench_result(synthetic.bench_runs(("plain",), ("code", "maths"))), tmp_path))
    assert files_in(tmp_path) == ["cost_curves.png", "report.html", "round_time.png"]
    assert "Fastest" not in page.text


def test_figures_of_an_earlier_report_go(tmp_path: Path) -> None:
    runs = synthetic.bench_runs(("plain", "block:4"), ("code",))
    write_report(synthetic.bench_result(runs), tmp_path)
    (tmp_path / "mine.png").write_bytes(b"not ours")
    page = Page(write_report(synthetic.bench_result(runs, curves=False), tmp_path))
    assert files_in(tmp_path) == ["acceptance.png", "mine.png", "report.html", "round_time.png", "speedup.png"]
    assert "--curve" in page.text


def test_names_with_markup_in_them(tmp_path: Path) -> None:
    mode = "block:4 <b>bold</b> $x_1$ " + "with a long name " * 8
    runs = synthetic.bench_runs(("plain", mode), (HOSTILE, "", "x" * 300, "half \ud83d \x00 \n"), prompts=1)
    page = Page(write_report(synthetic.bench_result(runs), tmp_path))
    assert files_in(tmp_path) == WHOLE
    assert not {"script", "b"} & set(page.tags)
    assert HOSTILE in page.text
    assert mode.strip() in page.text
    with Image.open(tmp_path / "speedup.png") as image:
        assert image.width == 1280


def test_what_has_no_prediction_is_said(tmp_path: Path) -> None:
    runs = synthetic.bench_runs(("plain", "block:16"), ("code",), prompts=1)
    page = Page(write_report(synthetic.bench_result(runs), tmp_path))
    assert "no prediction for some prompts of block:16: T(17) of the target" in page.text
    assert "prediction.png" not in files_in(tmp_path)


def test_modes_look_alike_in_all_figures_and_unlike_each_other() -> None:
    modes = ["plain", *(f"block:{gamma}" for gamma in range(1, 40))]
    styles = mode_styles(modes)
    assert len({(style.colour, style.marker) for style in styles.values()}) == 40
    assert styles["plain"] == ModeStyle(GREY, "o")
    assert mode_styles(modes[1:]) == {mode: styles[mode] for mode in modes[1:]}  # wherever plain is or is not


def test_the_users_style_changes_nothing(tmp_path: Path, result: BenchResult, folder: Path) -> None:
    with matplotlib.rc_context({"text.usetex": True, "figure.facecolor": "black", "font.size": 30, "savefig.dpi": 10}):
        write_report(result, tmp_path)
        assert matplotlib.rcParams["font.size"] == 30
    for name in FIGURES:
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_report_style_is_silent_about_missing_characters(recwarn: pytest.WarningsRecorder) -> None:
    with report_style():
        figure = plots.acceptance_figure(
            {"数学": rounds_of(synthetic.bench_result(synthetic.bench_runs(prompts=1)))["auto"]}, mode_styles(["数学"])
        )
        assert figure is not None
        figure.savefig(io.BytesIO(), format="png")
    assert not recwarn.list


@pytest.mark.parametrize("name", ["matplotlib", "jinja2"])
def test_missing_packages(name: str, tmp_path: Path, result: BenchResult, monkeypatch: pytest.MonkeyPatch) -> None:
    require_plotting()
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf'{name}: pip install "specllama\[plot\]"'):
        require_plotting()
    with pytest.raises(ImportError, match="pip install"):
        write_report(result, tmp_path / "report")
    assert not (tmp_path / "report").exists()


def test_folders_that_cannot_be_written(tmp_path: Path, result: BenchResult, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for folder in (file, file / "below"):
        with pytest.raises(OSError, match=r"cannot write the report into .*file.*: name another folder"):
            require_folder(folder)
        with pytest.raises(OSError, match="name another folder"):
            write_report(result, folder)
    assert file.read_text() == "mine"
    with monkeypatch.context() as patch, pytest.raises(PermissionError, match=r"denied.*name another folder"):
        patch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
        require_folder(tmp_path)
    (tmp_path / "report.html").mkdir()
    with pytest.raises(OSError, match=r"report\.html.*: name another folder"):
        write_report(result, tmp_path)


def test_matplotlib_is_loaded_for_a_report_only_and_never_pyplot(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
import synthetic_bench as synthetic
from specllama.evidence.bench.page import write_report
assert "matplotlib" not in sys.modules
runs = synthetic.bench_runs(("plain", "block:4"), ("code",), prompts=1)
print(write_report(synthetic.bench_result(runs), Path(sys.argv[1])).name)
assert "matplotlib.pyplot" not in sys.modules
"""
    found = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=Path(__file__).parents[1] / "helpers",
        capture_output=True,
        text=True,
    )
    assert (found.returncode, found.stdout) == (0, "report.html\n"), found.stderr
