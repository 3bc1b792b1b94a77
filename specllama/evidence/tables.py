"""Parts that reports share: tables, notes, the machine, and the costs of batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specllama.cost_curve import CostCurve


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
    """A Markdown table that is also aligned as plain text: columns in `left` to the left, all others to the right."""
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


def report_text(
    machine: Mapping[str, Any], parts: Sequence[str], notes: Sequence[str], command: str | None = None
) -> str:
    """A report: the machine, the command if there is one, the parts, and notes."""
    said = [f"```sh\n{command}\n```"] if command else []
    remarks = [f"Notes:\n{notes_text(notes)}"] if notes else []
    return "\n\n".join([machine_text(machine), *said, *parts, *remarks])


def prompts_text(settings: Mapping[str, Any]) -> str:
    """How many prompts are answered, of which categories, and how long the answers may be."""
    counts = settings["prompts"]
    named = ", ".join(f"{category} {count}" for category, count in counts.items())
    return f"up to {settings['max_tokens']} tokens for {sum(counts.values())} prompts ({named})"


def size_text(num_bytes: int) -> str:
    """A size in MiB or GiB."""
    return f"{num_bytes / 2**20:.2f} MiB" if num_bytes < 2**30 else f"{num_bytes / 2**30:.2f} GiB"


def notes_text(notes: Sequence[str]) -> str:
    """Notes, one on a line."""
    return "\n".join(f"- {note}" for note in notes)


def models_text(machine: Mapping[str, Any]) -> str:
    """The files and threads of target and draft, on one line."""
    return ", ".join(
        f"{role} {machine[role]['file']} ({machine[role]['n_threads']}/{machine[role]['n_threads_batch']} threads)"
        for role in ("target", "draft")
        if machine[role]
    )


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def machine_text(machine: Mapping[str, Any]) -> str:
    """The description by `describe_machine`, as a list and a table."""
    gpu = "GPU offload" if machine["gpu_offload"] else "no GPU offload"
    same_bits = machine["target"].get("batch_invariant", False)  # older results lack this value
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
    size = size_text(model["size"])
    params = model["parameters"]
    written = f"{params / 1e9:.2f} B" if params >= 1e9 else f"{params / 1e6:.2f} M"
    return [role, model["name"] or "-", model["file"], model["description"], size, written, *map(str, numbers)]
