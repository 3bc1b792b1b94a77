"""The report of a benchmark: one HTML file that needs no other files, and its figures as PNG files beside it."""

from __future__ import annotations

import contextlib
import errno
import importlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import specllama
from specllama.evidence.data import total
from specllama.evidence.tables import size_text

from .rounds import Prediction
from .runs import ALL, BenchResult

if TYPE_CHECKING:
    from .pictures import Picture

_NEEDED = ("matplotlib", "jinja2")


def require_plotting() -> None:
    """Check that the packages that a report needs are installed.

    Raises:
        ImportError: matplotlib or jinja2 is missing; the message says how to install them.
    """
    for name in _NEEDED:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ImportError(f'a report needs {name}: pip install "specllama[plot]"') from error


def require_folder(folder: Path) -> None:
    """Make the folder of a report if it is missing. This shows errors before measuring for an hour.

    Raises:
        OSError: the folder cannot be made or written, or is a file.
    """
    with _advising(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


def write_report(result: BenchResult, folder: Path) -> Path:
    """Write ``report.html`` and the PNG files into a folder, which is made if it is missing.

    Figures without data are left out, and removed if an earlier report has left them.

    Returns:
        The path of ``report.html``.

    Raises:
        ImportError: matplotlib or jinja2 is missing.
        OSError: the folder cannot be made or written.
    """
    require_plotting()
    require_folder(folder)
    from .pictures import pictures_of

    prediction = Prediction.of(result)
    modes = dict.fromkeys(run.mode for run in result.runs)
    rounds = {mode: total(run.stats for run in result.runs if run.mode == mode) for mode in modes}
    pictures = pictures_of(result, rounds, prediction)
    page = _page(result, [picture for picture in pictures if picture.png is not None], prediction.problems)
    path = folder / "report.html"
    with _advising(folder):
        for picture in pictures:
            file = folder / f"{picture.name}.png"
            if picture.png is not None:
                file.write_bytes(picture.png)
            else:
                file.unlink(missing_ok=True)
        path.write_text(page, encoding="utf-8", errors="replace")  # names from JSON can have lone surrogates
    return path


@contextlib.contextmanager
def _advising(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = f"{error.strerror}: {error.filename}" if error.strerror else str(error)
        raise type(error)(f"cannot write the report into {folder} ({why}): name another folder") from error


def _page(result: BenchResult, pictures: Sequence[Picture], problems: Sequence[str]) -> str:
    import jinja2

    from .plots import mode_styles

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(number=_number, percent=_percent, milliseconds=_milliseconds)
    template = resources.files("specllama.evidence.bench").joinpath("page.html.j2").read_text(encoding="utf-8")
    settings = dict(result.settings)
    command = settings.pop("command", None)
    categories = dict.fromkeys(row.category for row in result.summary if row.category != ALL)
    modes = dict.fromkeys(run.mode for run in result.runs)
    return environment.from_string(template).render(
        version=specllama.__version__,
        models=[_model_name(result.machine.get(role)) for role in ("target", "draft")],
        interrupted=result.interrupted,
        num_runs=len(result.runs),
        notes=[*result.notes, *problems],
        best=_best(result),
        overall=[row for row in result.summary if row.category == ALL],
        categories={name: [row for row in result.summary if row.category == name] for name in categories},
        pictures=pictures,
        curves=result.curves,
        sizes=sorted({n for curve in result.curves.values() for n in curve.sizes}),
        colours={mode: style.colour for mode, style in mode_styles(list(modes)).items()},
        command=command,
        machine=_facts(result.machine),
        settings=_facts(settings),
    )


def _best(result: BenchResult) -> Any:
    rows = [row for row in result.summary if row.category == ALL and row.mode != "plain"]
    return max((row for row in rows if math.isfinite(row.speedup_mean)), key=lambda row: row.speedup_mean, default=None)


def _model_name(model: Any) -> str:
    if not isinstance(model, Mapping):
        return ""
    names = (model.get("name") or model.get("file"), model.get("description"))
    return ", ".join(str(name) for name in names if name)


def _facts(facts: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Names and values as text, also those of nested mappings."""
    found = []
    for name, value in facts.items():
        label = f"{prefix}{name}".replace("_", " ")
        if isinstance(value, Mapping):
            found += _facts(value, f"{label} ")
        else:
            found.append((label, size_text(value) if name == "size" and isinstance(value, int) else _text_of(value)))
    return found


def _text_of(value: Any) -> str:
    if value is None or value in ("", [], ()):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text_of, value))
    return f"{value:,}" if isinstance(value, int) and value >= 1_000_000 else str(value)


def _number(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:.2f}"


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.2f}" if seconds >= 0.001 else f"{1000 * seconds:.4f}"


def _percent(value: float) -> str:
    return "–" if not math.isfinite(value) else f"{value:.0%}"
