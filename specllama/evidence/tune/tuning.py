"""Measures what batches cost the models of a Llama, and keeps the costs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from specllama.cost_curve import CostCurve, kept_sizes, measure_cost_curve
from specllama.evidence.machine import describe_machine, without_home
from specllama.evidence.plan import require_at_least
from specllama.llama import require_ours

from .choices import Plan, TuneResult

if TYPE_CHECKING:
    from specllama import Llama

OnProgress = Callable[[str, int, int], None]
"""Called with what is measured, and how much of it is done: (step, done, total)."""

_CHUNKS = (32, 64, 128, 256, 512)  # sizes of the chunks in which a draft decodes prompts
_CHUNK_REPEATS = 2
_SMALL = 17  # tokens; only long drafts by lookup make larger batches, and these are rare
_LARGE_REPEATS = 3
_STEADY = 1.25  # on an idle machine the upper quartile of a size's times is less than this many times the lower one


def run(llm: Llama, *, repeats: int = 7, n_past: int = 128, on_progress: OnProgress | None = None) -> TuneResult:
    """Measure what batches cost the target and, if a model drafts for it, the draft.

    The curves are kept in the cache directory for the Llama's settings, and the Llama uses them from now on. The KV
    caches of both models are emptied. It takes from some seconds to minutes.

    Args:
        llm: a target, with a draft or without.
        repeats: how often each size is decoded.
        n_past: how many tokens are in the KV cache before each batch.
        on_progress: called after every decode.

    Raises:
        TypeError: the Llama is not ours, or a number is not an integer.
        ValueError: the largest batch does not fit into the context, a model cannot roll back, or an argument is out of
            range.
        ClosedError: the Llama is closed.
        BusyError: the Llama generates in another thread.
    """
    require_ours(llm)
    require_at_least(1, repeats=repeats)
    require_at_least(0, n_past=n_past)
    curves: dict[str, CostCurve] = {}
    notes: list[str | None] = []
    with llm.engine.direct():  # so that no other thread generates meanwhile
        for role, model in llm.models.items():
            curves[role] = _measured(model, role, llm.max_draft_tokens + 1, repeats, n_past, on_progress)
            notes += [on_noise(curves[role]), _keep(llm, undisturbed(curves[role]))]
        llm.reset()
    notes.append(_on_unmeasured(llm, len(curves) - 1))
    return TuneResult(
        curves=curves,
        plans=_plans(curves),
        notes=[note for note in notes if note],
        settings={"repeats": repeats, "n_past": n_past},
        machine=describe_machine(llm),
    )


def _on_unmeasured(llm: Llama, num_measured: int) -> str | None:
    """A note for the user that the cost of a draft was not measured, so that it has no plan; else None."""
    draft = llm.engine.draft
    if draft is None or draft.given == "lookup":
        return None
    if not draft.is_paced:
        return f"the plan is lookup's: {draft.label} drafts what it has, paying or not; bench says what it gains"
    if num_measured == (len(draft.given) if isinstance(draft.given, list) else 1):
        return None
    return f"{draft.label}: a head's cost is learned while generating, so it has no plan; bench says what it gains"


def undisturbed(curve: CostCurve) -> CostCurve:
    """The curve of the lower quartiles, since other work on the machine makes a batch slower, never faster."""
    return CostCurve(curve.name, curve.n_past, {n: (curve.spread(n)[0],) for n in curve.sizes})


def on_noise(curve: CostCurve) -> str | None:
    """A note if other programs used the machine while a curve was measured; else None."""
    ratio = statistics.median(high / low for low, high in map(curve.spread, curve.sizes))
    if ratio < _STEADY:
        return None
    return (
        f"the upper quartiles of the {curve.name} lie {ratio - 1:.0%} above the lower ones: something else used the "
        "machine; tune again when it is idle"
    )


def _measured(model: Any, role: str, most: int, repeats: int, n_past: int, on_progress: OnProgress | None) -> CostCurve:
    def measure(what: str, sizes: Iterable[int], repeats: int) -> CostCurve:
        step = f"{what} of the {role}"
        listener = None if on_progress is None else lambda done, total: on_progress(step, done, total)
        return measure_cost_curve(model, role, sizes=sizes, repeats=repeats, n_past=n_past, on_progress=listener)

    # A draft decodes long batches only for prompts. For these, only some sizes are measured: `_CHUNKS`.
    most = min(most, model.n_batch, max(_SMALL, model.n_ctx() - n_past) if role == "target" else _SMALL)
    sizes = kept_sizes(most)
    curve = measure("batches", [n for n in sizes if n <= _SMALL], repeats)
    if large := [n for n in sizes if n > _SMALL]:
        more = measure("larger batches", large, min(repeats, _LARGE_REPEATS))
        curve = CostCurve(role, n_past, {**curve.samples, **more.samples})
    chunks = [n for n in _CHUNKS if most < n <= min(model.n_batch, model.n_ctx() - n_past)]
    if role == "target" or not chunks:
        return curve
    return CostCurve(role, n_past, {**curve.samples, **measure("prompt chunks", chunks, _CHUNK_REPEATS).samples})


def _keep(llm: Llama, curve: CostCurve) -> str | None:
    """Write a curve. Returns a note if that fails."""
    try:
        llm.engine.keep_costs(curve.name, {n: curve.seconds(n) for n in curve.sizes})
    except (OSError, RuntimeError) as error:
        return without_home(f"the costs of the {curve.name} cannot be kept: {error}")
    return None


def _plans(curves: dict[str, CostCurve]) -> dict[str, Plan]:
    target = undisturbed(curves["target"])
    plans = {"lookup": Plan.of(target, None)}
    if "draft" in curves:
        return {"draft model": Plan.of(target, undisturbed(curves["draft"])), **plans}
    return plans
