"""Learns from use: a head goes on from what was kept since it learned last, and a better one takes its place."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from specllama.backend.cache import write_json
from specllama.engine import FINAL, KeptFile, kept_files, learn_dir
from specllama.models import HYDRA, resolve

from .from_use import Used, num_kept
from .progress import SILENT, Progress
from .start import Start
from .target import Target, read_target
from .torch_here import device_of_training, require_gguf_package, require_torch, save, use_threads
from .work import Work

if TYPE_CHECKING:
    import torch

    from .head import Learner

FIRST = 20_000
"""The fewest tokens of answers from which a first head is learned."""
NEXT = 2_000
"""The fewest new tokens from which a head goes on learning."""
_SESSION = "session"
_RATE = 0.5  # of the learning rates, for a head that goes on
_ABOUT, _WEIGHTS = "head.json", "head.pt"
_VERSION = 1  # of these two files
_LARGEST_FILE = 1 << 24  # bytes that are read of what a head has learned


@dataclasses.dataclass(frozen=True)
class Learned:
    """The head that a model has learned from its use.

    Attributes:
        path: the head's file, which is a ``draft_model`` of the model.
        greedy: the measured `Acceptance.greedy`, on conversations that it has not learned from.
        num_tokens: how many tokens of answers it has learned from.
        at: when it learned last, in seconds since 1970.
        texts: the names (`KeptName.text`) of the texts that it has learned from, or was measured on.
    """

    path: Path
    greedy: tuple[float, ...]
    num_tokens: int
    at: float
    texts: frozenset[str]


def learned_head(weights: str) -> Learned | None:
    """The head that was learned for a model; None if there is none.

    Args:
        weights: the `Digest` of the model's weights.
    """
    folder = learn_dir(weights)
    try:
        with open(folder / _ABOUT, "rb") as file:
            found = json.loads(file.read(_LARGEST_FILE))
        known = Learned(
            folder / str(found["path"]),
            tuple(float(one) for one in found["greedy"]),
            int(found["num_tokens"]),
            float(found["at"]),
            frozenset(map(str, found["texts"])),
        )
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return known if found.get("version") == _VERSION and known.path.is_file() else None


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


def learn(model: str | os.PathLike[str], *, threads: int | None = None, progress: Progress = SILENT) -> Learned:
    """Learn from what was kept since the last time. A call that was interrupted goes on where it was.

    It learns the new texts, and as many tokens of old ones, so that it does not forget these. Of the weights in the
    course of the training those are taken that were the best on conversations that are held out: where the old head is
    better there than all of them, it stays.

    Args:
        model: a GGUF file, or a name of the catalog.
        threads: the number of threads; None for one.
        progress: is told the progress.

    Returns:
        The head.

    Raises:
        ImportError: PyTorch or gguf is not installed.
        ModelNotFoundError: there is no such model.
        ValueError: too little was kept since the last time.
        AlreadyTrainingError: another process is training a head for this model.
        OSError: the disk is full, or cannot be written.
    """
    require_torch(), require_gguf_package()
    use_threads(threads or 1)
    target = dataclasses.replace(read_target(resolve(os.fspath(model))), layers=(FINAL,))
    work = Work(target.weights, {"learn": True}, {})
    with work.locked():
        before, weights = learned_head(target.weights), _weights_of(target)
        if before is not None and weights is None:
            progress.note("the weights of the head that has learned are damaged: a new head begins")
            before = None
        start = Start(target, HYDRA) if before is None else Continued(target, HYDRA, weights or {})
        session = work.read(_SESSION) or _begun(target, before, work)
        found = _learned(start, before, session, work, progress)
        work.remove()
    return found


def forget_head(weights: str) -> None:
    """Delete the head that was learned for a model.

    Args:
        weights: the `Digest` of the model's weights.

    Raises:
        OSError: a file cannot be deleted.
    """
    known, folder = learned_head(weights), learn_dir(weights)
    for path in (folder / _ABOUT, folder / _WEIGHTS, *([] if known is None else [known.path])):
        path.unlink(missing_ok=True)


def _weights_of(target: Target) -> dict[str, torch.Tensor] | None:
    """All numbers of the head that has learned, by their names in PyTorch; None if there are none, or damaged ones."""
    try:
        found = require_torch().load(learn_dir(target.weights) / _WEIGHTS, "cpu", weights_only=True)
    except Exception:  # a damaged archive raises whatever the part raises that reads it
        return None
    return found if isinstance(found, dict) else None


def _begun(target: Target, before: Learned | None, work: Work) -> dict[str, Any]:
    """Choose what is learned, and keep copies of it, because the model may be used while the head learns.

    Raises:
        ValueError: too little was kept since the last time.
        OSError: the disk is full.
    """
    files = kept_files(learn_dir(target.weights))
    fresh = [one for one in files if before is None or one.name.text not in before.texts]
    count, least = num_kept(one for one in fresh if not one.name.is_held_out), FIRST if before is None else NEXT
    if count < least:
        raise ValueError(
            f"{count} tokens to learn were kept {'so far' if before is None else 'since the last time'}, and {least} "
            "are needed: use the model with --learn (learn=True) for longer"
        )
    if all(one.name.is_held_out == files[0].name.is_held_out for one in files):
        raise ValueError("all that was kept is of one conversation, and one of ten is held out: begin others, too")
    Used(work.used).copy([*fresh, *_old(files, fresh, count)])
    session = {"num_tokens": count}
    work.write(_SESSION, session)
    return session


def _old(files: Sequence[KeptFile], fresh: Sequence[KeptFile], count: int) -> list[KeptFile]:
    """Old texts of about as many tokens, and all old ones that are held out."""
    new = {one.name.text for one in fresh}
    old = [one for one in files if one.name.text not in new]
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
    from .fit import fit
    from .plan import num_rows
    from .shards import write_examples
    from .train import counted_rows

    used, target = Used(work.used), start.target
    texts = used.texts()
    rows = counted_rows(texts, target.n_vocab, num_rows)
    write_examples(used.examples(rows, target.n_vocab), work.states)
    progress.note(f"learning from {len(texts)} answers of {sum(text.size for text in texts)} tokens")
    device, folder = device_of_training(), learn_dir(target.weights)
    head, acceptance = fit(work, start, rows, device=device, seconds=float("inf"), progress=progress)
    path = folder / f"{HYDRA}-{Path(target.path).stem}.gguf"
    num_tokens, earlier = int(session["num_tokens"]), frozenset[str]()
    if before is not None:
        num_tokens, earlier = num_tokens + before.num_tokens, before.texts
    write_head(path, target, head, rows, "Q8_0", acceptance=acceptance, num_tokens=num_tokens)
    save(head.state_dict(), folder / _WEIGHTS)
    known = Learned(path, acceptance.greedy, num_tokens, time.time(), earlier | used.names())
    write_json(
        folder / _ABOUT,
        {**dataclasses.asdict(known), "path": path.name, "texts": sorted(known.texts), "version": _VERSION},
    )
    return known
