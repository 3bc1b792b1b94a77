"""The training loop. It resumes where an earlier process has stopped, and keeps the best weights."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from specllama.models import OF_A_SMALL_MODEL, OF_THE_FINAL_STATE, PARALLEL

from .acceptance import Acceptance, acceptance
from .batches import Batch, Batches
from .head import Learner
from .loss import loss_of
from .optimizer import Muon
from .progress import Progress
from .start import Start
from .torch_here import computes_bfloat16, save
from .work import Work

EPOCHS = 4
"""The number of passes over the text. With more than five, EAGLE-3 heads become worse."""
CHECKPOINT = 240.0
"""The most seconds between two checkpoints."""
_WARM_UP = 0.01  # the share of the training in which the learning rates rise
_LARGEST_GRADIENT = 1.0
# The least number of places in a batch, and the wanted number of batches in all passes. 800 batches gave no better
# heads, and Muon takes seconds for each batch.
_LEAST_CELLS, _BATCHES = 256, 400


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a head learns. The defaults were chosen by experiments: docs/make-your-own-draft.md reports them.

    Attributes:
        loss: the loss of a batch.
        optimizer: makes the optimizer of the matrices, from the matrices and their learning rate.
        lr: the learning rate of the matrices.
        lr_vectors: the learning rate of all other weights, which AdamW trains.
        epochs: the number of passes over the text.
        most_cells: the most places in a batch.
        measures: how often the head is measured in a training.
    """

    loss: Callable[[Learner, Batch], torch.Tensor] = loss_of
    optimizer: Callable[[list[torch.Tensor], float], torch.optim.Optimizer] = Muon
    lr: float = 0.02
    lr_vectors: float = 2e-3
    epochs: int = EPOCHS
    most_cells: int = 4096
    measures: int = 12

    def cells_of(self, num_cells: int) -> int:
        """The number of places in a batch, chosen so that all passes together have enough batches."""
        return int(np.clip(num_cells // _BATCHES, _LEAST_CELLS, self.most_cells))


def recipe_of(kind: str) -> Recipe:
    """The recipe for a kind of draft."""
    if kind == PARALLEL:
        # The learning rate is higher, because the model must learn what a mask means. With masks, each place is
        # computed 2.75 times, and three times while measuring. So there are smaller batches and fewer measurements.
        return dataclasses.replace(SIBLINGS, lr=3e-4, most_cells=SIBLINGS.most_cells // 2, measures=4)
    if kind in OF_A_SMALL_MODEL:
        return SIBLINGS
    return OF_STATES if kind in OF_THE_FINAL_STATE else Recipe()


def _adamw(weights: list[torch.Tensor], rate: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(weights, lr=rate, weight_decay=0.0)


OF_STATES = Recipe(optimizer=_adamw, lr=1e-3)
"""The recipe of Medusa, Hydra and blockwise heads. For their wide matrices Muon would take most of the time."""
SIBLINGS = Recipe(optimizer=_adamw, lr=1e-4, epochs=2, most_cells=1024)
"""The recipe of a small model with low-rank additions. Muon is not used: it moves all directions equally fast."""


@dataclasses.dataclass
class Fit:
    """The state of a training.

    Args:
        head: the head that learns.
        device: PyTorch's device for computing.
        recipe: how the head learns.
        rate: a factor of the learning rates.

    Attributes:
        matrices: the optimizer of the matrices.
        vectors: the optimizer of all other weights.
        epoch: how many passes are complete.
        batch: how many batches of the current pass are done.
        seconds: how long the training has taken so far.
        best: the largest `Acceptance.length` so far; -1 before it is measured.
        curve: for each measurement, the progress from 0 to 1, and the shares `Acceptance.greedy` and `sampled`.
    """

    head: Learner
    device: str
    recipe: Recipe = Recipe()
    rate: float = 1.0

    def __post_init__(self) -> None:
        """Make the optimizers."""
        weights = list(self.head.parameters())
        matrices = [weight for weight in weights if weight.ndim == 2]
        self.matrices = self.recipe.optimizer(matrices, self.recipe.lr)
        vectors = [weight for weight in weights if weight.ndim == 1]
        self.vectors = torch.optim.AdamW([{"params": vectors}], lr=self.recipe.lr_vectors, weight_decay=0.01)
        self.epoch = self.batch = 0
        self.seconds = 0.0
        self.best = -1.0
        self.curve: list[tuple[float, list[float], list[float]]] = []
        self._bfloat16 = computes_bfloat16(self.device)

    def step(self, batch: Batch, done: float) -> float:
        """Learn from a batch.

        Args:
            batch: the batch.
            done: the progress of the training, from 0 to 1.

        Returns:
            The loss.
        """
        rate = min(1.0, done / _WARM_UP + 0.05) * max(0.0, 1.0 - done)
        for optimizer, highest in ((self.matrices, self.recipe.lr), (self.vectors, self.recipe.lr_vectors)):
            for group in optimizer.param_groups:
                group["lr"] = highest * self.rate * rate
        with self.autocast():
            loss = self.recipe.loss(self.head, batch)
        self.head.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), _LARGEST_GRADIENT)
        self.matrices.step()
        self.vectors.step()
        return float(loss.detach())

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """A context manager in which products are computed in bfloat16, if this is fast on the device."""
        return torch.autocast(self.device, torch.bfloat16) if self._bfloat16 else contextlib.nullcontext()

    def save(self, work: Work) -> None:
        """Write a checkpoint.

        Raises:
            OSError: the disk is full, or cannot be written.
        """
        named = {name: getattr(self, name) for name in ("epoch", "batch", "seconds", "best", "curve")}
        states = {name: getattr(self, name).state_dict() for name in ("head", "matrices", "vectors")}
        save({**named, **states}, work.checkpoint)

    def load(self, work: Work) -> bool:
        """Resume from the checkpoint. Returns False if there is none."""
        try:
            found = torch.load(work.checkpoint, map_location=self.device, weights_only=True)
        except FileNotFoundError:
            return False
        for name in ("head", "matrices", "vectors"):
            getattr(self, name).load_state_dict(found[name])
        for name in ("epoch", "batch", "seconds", "best", "curve"):
            setattr(self, name, found[name])
        return True


def learner_of(start: Start, rows: npt.NDArray[np.int64], batches: Batches, device: str) -> Learner:
    """The head or small model before its training. Equal arguments give equal random weights."""
    torch.manual_seed(1)
    return start.build(rows, batches.sizes(), batches.size_of_token()).to(device)


def fit(
    work: Work,
    start: Start,
    rows: npt.NDArray[np.int64],
    *,
    device: str,
    seconds: float,
    progress: Progress,
    recipe: Recipe | None = None,
) -> tuple[Learner, Acceptance]:
    """Train a head on the shards of a work folder.

    Args:
        work: the folder of the training.
        start: what the training starts from.
        rows: the tokens that the head can draft.
        device: PyTorch's device for computing.
        seconds: the most time for the training. Time in earlier processes counts.
        progress: is told the progress.
        recipe: how the head learns; None for the recipe of its kind.

    Returns:
        The best head, and its measured acceptance.

    Raises:
        OSError: the disk is full.
    """
    recipe = recipe or recipe_of(start.kind)
    batches, epochs = Batches(start.target, rows, work.states, device), recipe.epochs
    cells = work.read("cells")
    if cells is None:
        cells = {"cells": recipe.cells_of(epochs * batches.count(_LEAST_CELLS) * _LEAST_CELLS)}
        work.write("cells", cells)
    size = int(cells["cells"])
    total = epochs * batches.count(size)
    run = Fit(learner_of(start, rows, batches, device), device, recipe, start.rate)
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
            progress.done(f"training ({_accuracy(run)})", min(int(1000 * done), 999), 1000)
            if done >= measured + 1.0 / recipe.measures:
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
    run.head.eval()
    return run.head, acceptance(run.head, batches.held_out())


def _measure(run: Fit, batches: Batches, work: Work, done: float) -> None:
    """Measure the head, and keep its weights if they are the best so far."""
    run.head.eval()
    with run.autocast():
        found = acceptance(run.head, batches.held_out())
    run.head.train()
    run.curve.append((done, list(found.greedy), list(found.sampled)))
    if found.length > run.best or not work.best.exists():
        run.best = found.length
        save(run.head.state_dict(), work.best)


def _accuracy(run: Fit) -> str:
    greedy = run.curve[-1][1]
    return "right: " + " / ".join(f"{100 * one:.0f}" for one in greedy) + " %"
