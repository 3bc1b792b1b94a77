"""The result of an evaluation as text."""

from __future__ import annotations

from specllama.evidence.compare import WAYS
from specllama.evidence.tables import models_text, notes_text, table

from . import human_eval
from .grades import Accuracy, EvalResult

_EXPLANATION = (
    "t/s: generated tokens per second, prompts left out; `specllama bench` measures speed better, on longer "
    "answers and each with its prompt decoded anew. accepted: of drafted tokens. mean length: tokens per decode of the "
    "target."
)
_SHOWN_SETTINGS = ("num_questions", "seed", "max_tokens", "num_draft_tokens", "verify")


def to_text(result: EvalResult) -> str:
    """Settings, a table with one row for each way, the comparison in words, and notes."""
    parts = [_heading(result), _table(result), _EXPLANATION]
    comparison = result.comparison
    if comparison is not None:
        points = [100 * x for x in (comparison.difference, comparison.difference_low, comparison.difference_high)]
        parts.append(
            f"Speculative minus plain: {points[0]:+.1f} points, 95% interval [{points[1]:+.1f}, {points[2]:+.1f}].\n"
            f"{comparison.sentence}"
        )
    notes = result.notes
    if result.interrupted:
        notes.append(f"Interrupted: {len(result.records)} of {result.settings['num_questions']} questions are done.")
    return "\n\n".join([*parts, *([notes_text(notes)] if notes else [])])


def _heading(result: EvalResult) -> str:
    settings = result.settings
    sampling = {name: value for name, value in settings.items() if name not in _SHOWN_SETTINGS}
    chain = ", ".join(f"{name} {value}" for name, value in sampling.items())
    return (
        f"{result.name}: {len(result.records)} questions, {chain}, seed {settings['seed']}, up to "
        f"{settings['max_tokens']} tokens; drafted a round: {settings['num_draft_tokens']}, rule {settings['verify']}\n"
        f"{models_text(result.machine)}"
    )


def _table(result: EvalResult) -> str:
    comparison = result.comparison
    rows = []
    for way in WAYS:
        stats = result.stats[way]
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in result.outcomes[way].items())
        accuracy = "-" if comparison is None else _accuracy(getattr(comparison, way))
        drafted = way == "speculative"
        rows.append(
            [
                way,
                accuracy,
                outcomes,
                f"{stats.tokens_per_second:.2f}",
                f"{stats.acceptance_rate:.1%}" if drafted else "-",
                f"{stats.mean_acceptance_length:.2f}" if drafted else "-",
            ]
        )
    share = "pass@1" if result.name == human_eval.NAME else "right"
    titles = ("", f"{share} [95%]", "answers", "t/s", "accepted", "mean length")
    return table(titles, rows, left=titles[:3])


def _accuracy(accuracy: Accuracy) -> str:
    return f"{accuracy.rate:.1%} [{100 * accuracy.low:.1f}, {100 * accuracy.high:.1f}]"
