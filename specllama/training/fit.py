"""The training itself: it goes on where it was, and keeps the best weights."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from .acceptance import Acceptance, acceptance
from .batches import Batch, Batches
from .head import STEPS, AnyHead, Head, Shape
from .optimizer import Muon
from .progress import Progress
from .start import Start
from .state_head import CLASSES, AnyShape, StateShape
from .target import Target
from .torch_here import computes_bfloat16, save
from .work import Work

EPOCHS = 4
"""Passes over the text: more than five make EAGLE-3 heads worse."""
CHECKPOINT = 240.0
"""Seconds between two checkpoints, at most."""
_FURTHER = 0.25  # of these, where a head is trained further
_WARM_UP = 0.01  # of the training
_LARGEST_GRADIENT = 1.0
_LEAST_CELLS, _MOST_CELLS, _BATCHES = 256, 4096, 800
_MEASURES = 12  # of a training


def cells_of(num_cells: int) -> int:
    """Places in a batch: as many as leave enough batches of so many places, all passes together."""
    return int(np.clip(num_cells // _BATCHES, _LEAST_CELLS, _MOST_CELLS))


def loss_of(head: AnyHead, batch: Batch) -> torch.Tensor:
    """Cross-entropy of the head's guesses with the target's distribution over its likeliest tokens, all steps alike.

    The entropy of the target's does not depend on the weights: this is the Kullback-Leibler divergence but for it.
    """
    total = batch.embedded.new_zeros(())
    for step, multiplied in enumerate(head(batch.embedded, head.read(batch.states), STEPS)):
        learned = batch.learned.clone()
        learned[:, :step] = False
        logits = head.logits(multiplied[learned]).float()
        shares = batch.shares[learned]
        said = torch.gather(logits, -1, batch.likely[learned])
        entropy = shares.sum(-1) * logits.logsumexp(-1) - (shares * said).sum(-1)
        total = total + entropy.sum() / max(1, len(logits))
    return total / STEPS


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a head learns. What is not given here was chosen by experiments: see docs/make-your-own-draft.md.

    Attributes:
        loss: of a batch.
        optimizer: of matrices, for a learning rate.
        lr: its learning rate, and
        lr_vectors: that of AdamW for all else.
        epochs: passes over the text: more than five make EAGLE-3 heads worse.
    """

    loss: Callable[[AnyHead, Batch], torch.Tensor] = loss_of
    optimizer: Callable[[list[torch.Tensor], float], torch.optim.Optimizer] = Muon
    lr: float = 0.02
    lr_vectors: float = 2e-3
    epochs: int = EPOCHS


@dataclasses.dataclass
class Fit:
    """A training that is under way.

    Args:
        head: what learns.
        device: where.
        recipe: how.
        rate: of the learning rates.

    Attributes:
        matrices: the optimizer of matrices.
        vectors: that of all else.
        epoch: how many passes are over.
        batch: how many batches of this pass.
        seconds: how long it has trained.
        best: the longest draft so far, see `Acceptance.length`.
        curve: how far it was, in parts of the whole, and what was measured there.
    """

    head: AnyHead
    device: str
    recipe: Recipe = Recipe()
    rate: float = 1.0

    def __post_init__(self) -> None:
        """See the class."""
        weights = list(self.head.parameters())
        matrices = [weight for weight in weights if weight.ndim == 2]
        self.matrices = self.recipe.optimizer(matrices, self.recipe.lr)
        vectors = [weight for weight in weights if weight.ndim == 1]
        self.vectors = torch.optim.AdamW(vectors, lr=self.recipe.lr_vectors, weight_decay=0.01)
        self.epoch = self.batch = 0
        self.seconds = 0.0
        self.best = -1.0
        self.curve: list[tuple[float, list[float], list[float]]] = []
        self._low = computes_bfloat16(self.device)

    def step(self, batch: Batch, done: float) -> float:
        """Learn from a batch. `done`: how much of the training is over. Returns the loss."""
        rate = min(1.0, done / _WARM_UP + 0.05) * max(0.0, 1.0 - done)
        for optimizer, highest in ((self.matrices, self.recipe.lr), (self.vectors, self.recipe.lr_vectors)):
            for group in optimizer.param_groups:
                group["lr"] = highest * self.rate * rate
        with self.lowered():
            loss = self.recipe.loss(self.head, batch)
        self.head.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), _LARGEST_GRADIENT)
        self.matrices.step()
        self.vectors.step()
        return float(loss.detach())

    def lowered(self) -> contextlib.AbstractContextManager[Any]:
        """Within it products are computed in bfloat16, where that is fast."""
        return torch.autocast(self.device, torch.bfloat16) if self._low else contextlib.nullcontext()

    def save(self, work: Work) -> None:
        """Keep it. See `torch_here.save`."""
        named = {name: getattr(self, name) for name in ("epoch", "batch", "seconds", "best", "curve")}
        states = {name: getattr(self, name).state_dict() for name in ("head", "matrices", "vectors")}
        save({**named, **states}, work.checkpoint)

    def load(self, work: Work) -> bool:
        """Go on from what was kept, if there is something."""
        try:
            found = torch.load(work.checkpoint, map_location=self.device, weights_only=True)
        except FileNotFoundError:
            return False
        for name in ("head", "matrices", "vectors"):
            getattr(self, name).load_state_dict(found[name])
        for name in ("epoch", "batch", "seconds", "best", "curve"):
            setattr(self, name, found[name])
        return True


def shape_of(kind: str, target: Target, n_rows: int) -> AnyShape:
    """The sizes of a new head of a kind."""
    return StateShape(kind, target.n_embd, n_rows) if kind in CLASSES else Shape.of(target, n_rows)


def new_head(
    target: Target,
    rows: npt.NDArray[np.int64],
    batches: Batches,
    device: str,
    start: Start | None = None,
    kind: str = "eagle3",
) -> AnyHead:
    """A head as it is before it learns: one that has learned nothing, or what it starts from."""
    torch.manual_seed(1)
    sizes = batches.sizes()
    if start is not None:
        return start.head(target, sizes).to(device)
    shape, output = shape_of(kind, target, len(rows)), torch.from_numpy(target.output_rows(rows))
    if isinstance(shape, StateShape):
        return CLASSES[kind](shape, sizes, batches.size_of_token(), output).to(device)
    head = Head(shape, sizes, output)
    with torch.no_grad():
        head.of_output.weight.copy_(torch.from_numpy(target.output_norm()))
    return head.to(device)


def fit(
    work: Work,
    target: Target,
    rows: npt.NDArray[np.int64],
    *,
    start: Start | None = None,
    kind: str = "eagle3",
    device: str,
    seconds: float,
    progress: Progress,
    recipe: Recipe = Recipe(),
) -> tuple[AnyHead, Acceptance]:
    """Train a head on the shards of a work folder.

    Args:
        work: where it is kept.
        target: the head's.
        rows: the tokens that it says.
        start: what it starts from.
        kind: of a new head.
        device: where it is computed.
        seconds: it ends then at the latest, those of earlier processes included.
        progress: hears how far it is.
        recipe: how it learns.

    Returns:
        The best head, and how often it was right.

    Raises:
        OSError: the disk is full.
    """
    batches, epochs = Batches(target, rows, work.states, device), recipe.epochs
    cells = work.read("cells")
    if cells is None:
        cells = {"cells": cells_of(epochs * batches.count(_LEAST_CELLS) * _LEAST_CELLS)}
        work.write("cells", cells)
    size = int(cells["cells"])
    total = epochs * batches.count(size)
    rate = 1.0 if start is None else _FURTHER
    run = Fit(new_head(target, rows, batches, device, start, kind), device, recipe, rate)
    run.load(work)
    begun, saved = time.monotonic() - run.seconds, time.monotonic()
    done = measured = run.curve[-1][0] if run.curve else 0.0
    number = run.epoch * (total // epochs) + run.batch
    if not run.curve:
        _measure(run, batches, work, 0.0)
    while run.epoch < epochs and done < 1.0:
        for place, batch in enumerate(batches.learned(size, run.epoch)):
            if place < run.batch:
                continue
            done = max(number / max(1, total), (time.monotonic() - begun) / max(seconds, 1e-9))
            if done >= 1.0:
                break
            run.step(batch, done)
            number += 1
            run.batch = place + 1
            run.seconds = time.monotonic() - begun
            progress.done(f"training ({_shown(run)})", min(int(1000 * done), 999), 1000)
            if done >= measured + 1.0 / _MEASURES:
                measured = done
                _measure(run, batches, work, done)
            if time.monotonic() - saved > CHECKPOINT:
                run.save(work)
                saved = time.monotonic()
        else:
            run.epoch, run.batch = run.epoch + 1, 0
            run.save(work)
            saved = time.monotonic()
    _measure(run, batches, work, 1.0)
    run.save(work)
    run.head.load_state_dict(torch.load(work.best, map_location=device, weights_only=True))
    return run.head, acceptance(run.head, batches.held_out())


def _measure(run: Fit, batches: Batches, work: Work, done: float) -> None:
    """See how often it is right, and keep the weights if they are better than all before."""
    run.head.eval()
    with run.lowered():
        found = acceptance(run.head, batches.held_out())
    run.head.train()
    run.curve.append((done, list(found.greedy), list(found.sampled)))
    if found.length > run.best or not work.best.exists():
        run.best = found.length
        save(run.head.state_dict(), work.best)


def _shown(run: Fit) -> str:
    greedy = run.curve[-1][1]
    return "right: " + " / ".join(f"{100 * one:.0f}" for one in greedy) + " %"
