"""The result of a benchmark as text: Markdown for reading, CSV and JSON for computing."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Callable, Sequence
from typing import Any

from specllama.evidence.tables import curves_table, prompts_text, report_text, table

from .runs import BenchResult, Row

_EXPLANATION = (
    "speedup: tokens per second over those of plain decoding on the same prompt, its own processing left out; the mean "
    "over prompts [95% bootstrap interval; of fewer than five prompts little more than their range]. "
    "end to end: the same with the prompt's processing. accepted: of drafted "
    "tokens. mean length: tokens per decode of the target. draft/verify/sample: shares of the time, in %."
)


def to_markdown(result: BenchResult) -> str:
    """Machine, settings, a table with one row for each mode and category, the costs of batches, and notes."""
    settings = result.settings
    curves = [curves_table(result.curves)] if result.curves else []
    parts = [_settings(settings), _summary(result.summary), *curves]
    return report_text(result.machine, parts, result.notes, settings.get("command"))


def to_csv(result: BenchResult) -> str:
    """The summary, one row for each mode and category."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in dataclasses.fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(dataclasses.asdict(row) for row in result.summary)
    return text.getvalue().rstrip("\n")


def to_json(result: BenchResult) -> str:
    """The whole result: runs, summary, machine, settings, curves."""
    return json.dumps(result.to_dict(), allow_nan=False, indent=2)


def to_jsonl(result: BenchResult) -> str:
    """All runs, each on a line of JSON."""
    runs = result.to_dict()["runs"]
    return "\n".join(json.dumps(run, allow_nan=False) for run in runs)


FORMATS: dict[str, Callable[[BenchResult], str]] = {
    "md": to_markdown,
    "csv": to_csv,
    "json": to_json,
    "jsonl": to_jsonl,
}


def _settings(settings: dict[str, Any]) -> str:
    temperature, seed = settings["temperature"], settings["seed"]
    sampling = "greedy" if temperature == 0 else f"temperature {temperature:g}"
    others = "".join(f", {name} {value}" for name, value in settings["sampling"].items())
    repeat = f", {settings['repeat']} times each" if settings["repeat"] > 1 else ""
    rule = settings["verify"]
    if rule == "auto":
        rule = "block" if seed is None else "coupled"
    gamma = settings["num_draft_tokens"]
    drafted = f"{gamma} {'token' if gamma == 1 else 'tokens'} a round"
    if gamma == "auto":
        drafted = "as many tokens as pay" if settings.get("is_paced", True) else "all tokens that there are"
    auto = "auto is" if settings.get("synthetic") else f"the mode auto drafts {drafted}, and its rule is"
    return (
        f"{sampling}{others}, {'no seed' if seed is None else f'seed {seed}'}; "
        f"{prompts_text(settings)}{repeat}; "
        f"drafted by {settings['drafter'] or 'nothing'}; {auto} {rule}"
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
