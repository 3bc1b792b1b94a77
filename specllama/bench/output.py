"""A benchmark's result as text: Markdown to paste, CSV and JSON to compute with."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .result import BenchResult, Row

if TYPE_CHECKING:
    from specllama.cost_curve import CostCurve

_EXPLANATION = (
    "speedup: tokens per second over those of plain decoding on the same prompt, its own processing left out; the mean "
    "over prompts [95% bootstrap interval; of fewer than five prompts little more than their range]. "
    "end to end: the same with the prompt's processing. accepted: of drafted "
    "tokens. mean length: tokens per decode of the target. draft/verify/sample: shares of the time, in %."
)


def to_markdown(result: BenchResult) -> str:
    """Machine, settings, a table with one row for each mode and category, the costs of batches, and notes."""
    settings = result.settings
    parts = [machine_text(result.machine)]
    if settings.get("command"):
        parts.append(f"```sh\n{settings['command']}\n```")
    parts += [_settings(settings), _summary(result.summary)]
    if result.curves:
        parts.append(curves_table(result.curves))
    if settings["notes"]:
        parts.append("\n".join(["Notes:", *(f"- {note}" for note in settings["notes"])]))
    return "\n\n".join(parts)


def to_csv(result: BenchResult) -> str:
    """The summary, one row for each mode and category."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in dataclasses.fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(dataclasses.asdict(row) for row in result.summary)
    return text.getvalue().rstrip("\n")


def to_json(result: BenchResult) -> str:
    """Everything: runs, summary, machine, settings, curves."""
    return json.dumps(result.to_dict(), allow_nan=False, indent=2)


def to_jsonl(result: BenchResult) -> str:
    """Every run on a line."""
    runs = result.to_dict()["runs"]
    return "\n".join(json.dumps(run, allow_nan=False) for run in runs)


FORMATS: dict[str, Callable[[BenchResult], str]] = {
    "md": to_markdown,
    "csv": to_csv,
    "json": to_json,
    "jsonl": to_jsonl,
}


def curves_table(curves: Mapping[str, CostCurve]) -> str:
    """What a batch of n tokens costs each model: median, quartiles, and T(n)/T(1)."""
    sizes = sorted({n for curve in curves.values() for n in curve.sizes})
    rows = []
    for n in sizes:
        cells = [str(n)]
        for curve in curves.values():
            if n not in curve.sizes:
                cells += ["-"] * 3
                continue
            low, high = curve.spread(n)
            relative = f"{curve.relative(n):.2f}" if 1 in curve.sizes else "-"
            cells += [f"{curve.seconds(n) * 1e3:.2f}", f"{low * 1e3:.2f} - {high * 1e3:.2f}", relative]
        rows.append(cells)
    titles = ["n", *(f"{name} {what}" for name in curves for what in ("ms", "quartiles", "T(n)/T(1)"))]
    past = next(iter(curves.values())).n_past
    heading = f"What a batch of n tokens costs behind {past} others, T(n): the median in milliseconds."
    return f"{heading}\n\n{table(titles, rows, left=())}"


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[str]) -> str:
    """A Markdown table whose columns are aligned as text too; those not in `left` to the right."""
    rows = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(title), 3, *(len(row[i]) for row in rows)) for i, title in enumerate(titles)]
    to_left = [title in left for title in titles]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.ljust(width) if is_left else cell.rjust(width)
            for cell, width, is_left in zip(cells, widths, to_left, strict=True)
        ]
        return f"| {' | '.join(padded)} |"

    rule = ["-" * width if is_left else "-" * (width - 1) + ":" for width, is_left in zip(widths, to_left, strict=True)]
    return "\n".join([line(titles), line(rule), *map(line, rows)])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def machine_text(machine: Mapping[str, Any]) -> str:
    """What `describe_machine` says, as a list and a table."""
    gpu = "GPU offload" if machine["gpu_offload"] else "no GPU offload"
    same_bits = machine["target"].get("batch_invariant", False)  # older results do not say
    lines = [
        f"- specllama {machine['specllama']}, llama-cpp-python {machine['llama_cpp_python']}, "
        f"Python {machine['python']}, {machine['os']}",
        f"- {machine['cpu']}, {machine['logical_cores']} logical cores",
        f"- backend {', '.join(machine['backends']) or 'unknown'} ({gpu}): {machine['system_info']}",
        *(f"- kernels of the {role}: {machine[role]['kernels']}" for role in ("target", "draft") if machine[role]),
        *(["- the target's logits are the same bits in every batch"] if same_bits else []),
        *(f"- {note}" for note in machine["backend_notes"]),
    ]
    rows = [_model_cells(name, machine[name]) for name in ("target", "draft") if machine[name]]
    titles = ("", "model", "file", "type", "size", "params", "ngl", "n_ctx", "threads", "threads batch")
    return "\n".join(lines) + "\n\n" + table(titles, rows, left=titles[:4])


def _model_cells(role: str, model: dict[str, Any]) -> list[str]:
    numbers = (model[key] for key in ("n_gpu_layers", "n_ctx", "n_threads", "n_threads_batch"))
    size = f"{model['size'] / 2**20:.2f} MiB" if model["size"] < 2**30 else f"{model['size'] / 2**30:.2f} GiB"
    params = model["parameters"]
    written = f"{params / 1e9:.2f} B" if params >= 1e9 else f"{params / 1e6:.2f} M"
    return [role, model["name"] or "-", model["file"], model["description"], size, written, *map(str, numbers)]


def _settings(settings: dict[str, Any]) -> str:
    temperature, seed = settings["temperature"], settings["seed"]
    sampling = "greedy" if temperature == 0 else f"temperature {temperature:g}"
    others = "".join(f", {name} {value}" for name, value in settings["sampling"].items())
    counts = ", ".join(f"{category} {count}" for category, count in settings["prompts"].items())
    repeat = f", {settings['repeat']} times each" if settings["repeat"] > 1 else ""
    rule = settings["verify"]
    if rule == "auto":
        rule += ", which is block" if seed is None else ", which is coupled"
    gamma = settings["num_draft_tokens"]
    gamma = "a paying number of" if gamma == "auto" else gamma
    return (
        f"{sampling}{others}, {'no seed' if seed is None else f'seed {seed}'}; up to {settings['max_tokens']} tokens "
        f"for {sum(settings['prompts'].values())} prompts ({counts}){repeat}; "
        f"drafted by {settings['drafter'] or 'nothing'}; auto is {gamma} draft tokens under the rule {rule}"
    )


def _summary(rows: Sequence[Row]) -> str:
    titles = "mode|category|prompts|tokens|t/s|speedup|median|end to end|accepted|mean length|draft/verify/sample|worst"
    cells = [_summary_cells(row) for row in rows]
    return f"{table(titles.split('|'), cells, left=('mode', 'category', 'worst'))}\n\n{_EXPLANATION}"


def _summary_cells(row: Row) -> list[str]:
    cells = [row.mode, row.category, str(row.num_prompts), str(row.num_tokens), f"{row.tokens_per_second:.2f}"]
    shares = "/".join(f"{share * 100:.0f}" for share in (row.draft_share, row.verify_share, row.sample_share))
    if row.mode == "plain":
        return [*cells, "1.00x", "1.00x", "1.00x", "-", "-", shares, "-"]
    spread = f" [{row.speedup_low:.2f}, {row.speedup_high:.2f}]" if row.num_prompts > 1 else ""
    return [
        *cells,
        f"{row.speedup_mean:.2f}x{spread}",
        f"{row.speedup_median:.2f}x",
        f"{row.end_to_end_mean:.2f}x",
        f"{row.acceptance_rate:.1%}",
        f"{row.mean_acceptance_length:.2f}",
        shares,
        f"{row.worst_speedup:.2f}x {row.worst_prompt}",
    ]
