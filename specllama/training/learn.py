"""Learns from use: a head goes on from what was kept since it learned last, and a better one takes its place."""

from __future__ import annotations

import dataclasses
import os
import random
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from specllama.engine import (
    FINAL,
    KeptFile,
    Learned,
    fresh_texts,
    kept_files,
    learn_dir,
    learned_head,
    learned_path,
    learned_weights,
    num_kept,
    remove_left,
)
from specllama.models import HYDRA, resolve

from .from_use import Used
from .progress import SILENT, Progress
from .start import Start
from .target import Target, read_target
from .torch_here import device_of_training, require_gguf_package, require_torch, save, use_threads
from .work import Work

if TYPE_CHECKING:
    import torch

    from .head import Learner

_SESSION = "session"
_RATE = 0.5  # of the learning rates, for a head that goes on


@dataclasses.dataclass(frozen=True)
class Continued(Start):
    """A head of the final state that goes on learning.

    Attributes:
        weights: all its numbers, by their names in PyTorch.
    """

    weights: Mapping[str, torch.Tensor] = dataclasses.field(repr=False)

    rate = _RATE

    def build(self, rows: npt.NDArray[np.int64], sizes: torch.Tensor, size_of_token: float) -> Learner:
        """See the base class. The head divides states by the sizes that it has learned with."""
        head = super().build(rows, sizes, size_of_token)
        head.load_state_dict(dict(self.weights))
        return head


def learn(
    model: str | os.PathLike[str], *, threads: int | None = None, wait: float = 0.0, progress: Progress = SILENT
) -> Learned:
    """Learn from what was kept since the last time. A call that was interrupted goes on where it was.

    It learns the new texts, and as many tokens of old ones, so that it does not forget these. Of the weights in the
    course of the training those are taken that were the best on conversations that are held out: where the old head is
    better there than all of them, it stays.

    Args:
        model: a GGUF file, or a name of the catalog.
        threads: the number of threads; None for one.
        wait: how many seconds to wait for another process that trains a head for this model.
        progress: is told the progress.

    Returns:
        The head.

    Raises:
        ImportError: PyTorch or gguf is not installed.
        ModelNotFoundError: there is no such model.
        ValueError: too little was kept since the last time.
        AlreadyTrainingError: another process is training a head for this model.
        OSError: the disk is full, or cannot be written.
        MemoryError: there is too little memory.
    """
    require_torch(), require_gguf_package()
    use_threads(threads or 1)
    target = dataclasses.replace(read_target(resolve(os.fspath(model))), layers=(FINAL,))
    work = _work(target.weights)
    with work.locked(wait):
        remove_left(learn_dir(target.weights))
        before, weights = learned_head(target.weights), _weights_of(target)
        if before is not None and weights is None:
            progress.note("the weights of the head that has learned are damaged: a new head begins")
            before = None
        start = Start(target, HYDRA) if before is None else Continued(target, HYDRA, weights or {})
        session = _session(target, before, work)
        found = _learned(start, before, session, work, progress)
        work.remove()
    return found


def forget_session(weights: str, wait: float) -> None:
    """Delete what an interrupted call of `learn` has left: copies of kept texts, and what was learned from them.

    Args:
        weights: the `Digest` of the model's weights.
        wait: how many seconds to wait for another process that trains a head for this model.

    Raises:
        AlreadyTrainingError: another process is training a head for this model.
        OSError: the cache directory cannot be written.
    """
    work = _work(weights)
    with work.locked(wait):
        work.remove()


def _work(weights: str) -> Work:
    return Work(weights, {"learn": True}, {})


def _weights_of(target: Target) -> dict[str, torch.Tensor] | None:
    """All numbers of the head that has learned, by their names in PyTorch; None if there are none, or damaged ones."""
    try:
        found = require_torch().load(learned_weights(target.weights), "cpu", weights_only=True)
    except Exception:  # a damaged archive raises whatever the part raises that reads it
        return None
    return found if isinstance(found, dict) else None


def _session(target: Target, before: Learned | None, work: Work) -> dict[str, Any]:
    """What an interrupted call has begun, or a new session. What a killed process has left in part begins anew."""
    found, names = work.read(_SESSION), Used(work.used).names()
    if found is None or names <= (frozenset() if before is None else before.texts):  # else it is learned already
        work.empty()
        found = _begun(target, before, work)
    return found


def _begun(target: Target, before: Learned | None, work: Work) -> dict[str, Any]:
    """Choose what is learned, and keep copies of it, because the model may be used while the head learns.

    Raises:
        ValueError: too little was kept since the last time.
        OSError: the disk is full.
    """
    new = fresh_texts(target.weights, before)
    if new.num_tokens < new.least:
        raise ValueError(
            f"{new.num_tokens} tokens to learn were kept {'so far' if before is None else 'since the last time'}, and "
            f"{new.least} are needed: use the model with --learn (learn=True) for longer"
        )
    if not new.has_both:
        raise ValueError("all that was kept is of one conversation, and one of ten is held out: begin others, too")
    files = kept_files(learn_dir(target.weights))
    Used(work.used).copy([*new.files, *_old(files, new.files, new.num_tokens)])
    session = {"num_tokens": new.num_tokens}
    work.write(_SESSION, session)
    return session


def _old(files: Sequence[KeptFile], new: Sequence[KeptFile], count: int) -> list[KeptFile]:
    """Old texts of about as many tokens, and all old ones that are held out."""
    names = {one.name.text for one in new}
    old = [one for one in files if one.name.text not in names]
    random.Random(count).shuffle(old)
    some, size = [one for one in old if one.name.is_held_out], 0
    for one in old:
        if size < count and not one.name.is_held_out:
            some.append(one)
            size += num_kept([one])
    return some


def _learned(
    start: Start, before: Learned | None, session: Mapping[str, Any], work: Work, progress: Progress
) -> Learned:
    from .file import write_head
    from .fit import fit, recipe_of
    from .plan import Plan, num_rows, require_room_to_train
    from .shards import write_examples
    from .train import counted_rows

    used, target = Used(work.used), start.target
    texts = used.texts()
    rows = counted_rows(texts, target.n_vocab, num_rows)
    plan = Plan(sum(text.size for text in texts), (0.0, 0.0, 0.0))
    shape, most_cells = start.shape(len(rows)), recipe_of(start.kind).most_cells
    require_room_to_train(shape, target.n_vocab, plan, 1.0, work.free(), most_cells)
    write_examples(used.examples(rows, target.n_vocab), work.states)
    progress.note(f"learning from {len(texts)} answers of {plan.num_tokens} tokens")
    head, acceptance = fit(work, start, rows, device=device_of_training(), seconds=float("inf"), progress=progress)
    path = learned_path(target.weights)
    num_tokens, earlier = int(session["num_tokens"]), frozenset[str]()
    if before is not None:
        num_tokens, earlier = num_tokens + before.num_tokens, before.texts
    write_head(path, target, head, rows, "Q8_0", acceptance=acceptance, num_tokens=num_tokens)
    save(head.state_dict(), learned_weights(target.weights))
    known = Learned(path, acceptance.greedy, num_tokens, time.time(), earlier | used.names())
    known.write()
    return known
