"""The demonstration: one prompt, decoded plainly and speculatively, with what each took."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from specllama.models.catalog import FILE_TYPES, Model

if TYPE_CHECKING:
    from specllama import Llama

PROMPT = (
    "Write a Python function `merge_intervals(intervals)` that merges overlapping intervals, "
    "with type hints, a docstring and three assertions that test it."
)
# Context, compute buffers and Python, beside the weights of both models.
_MEMORY_ROOM = int(1.2e9)


@dataclasses.dataclass(frozen=True)
class Pair:
    """Which forms of target and draft to run, and why. `None` is the form that the catalog has."""

    target_type: str | None
    draft_type: str | None
    gpu_layers: int
    reason: str


def choose_pair(target: Model, draft: Model, *, gpu: bool, memory: int) -> Pair:
    """Choose the forms in which speculation shows what it does on this machine.

    It pays where reading the weights is what takes the time. A GPU is there with 4-bit weights; a CPU computes
    too long on them, and shows it with a larger form of the same model, which stands for the larger models that
    people use drafts for.

    Args:
        target: the catalog's target.
        draft: its draft.
        gpu: whether llama.cpp can use one.
        memory: bytes that are available without swapping.
    """
    if gpu:
        return Pair(None, None, -1, f"llama.cpp can use a GPU here: {target.type} weights, all layers on the GPU")
    wanted = []
    for file_type in ("F16", "Q8_0"):
        size = int(target.size * FILE_TYPES[file_type] / FILE_TYPES[target.type])
        needed = size + draft.size + _MEMORY_ROOM
        wanted.append(f"{file_type} needs {needed / 1e9:.1f} GB")
        if memory >= needed:
            reason = f"{file_type} weights: on a CPU, a draft pays where reading the weights takes the time"
            return Pair(file_type, "Q4_0", 0, reason)
    reason = f"{target.type} weights, on which a CPU gains little: {', '.join(wanted)} of free memory"
    return Pair(None, "Q4_0", 0, reason)


def available_memory() -> int:
    """Bytes of memory that can be used without swapping."""
    import psutil

    return int(psutil.virtual_memory().available)


@contextlib.contextmanager
def loaded_pair(target: str, draft: str, pair: Pair, threads: int) -> Iterator[Llama]:
    """Load both models, and close them afterwards."""
    from specllama import Llama

    with contextlib.closing(
        Llama(
            target,
            draft_model=draft,
            n_ctx=2048,
            n_threads=threads,
            n_threads_batch=threads,
            n_gpu_layers=pair.gpu_layers,
            verbose=False,
        )
    ) as llm:
        yield llm
