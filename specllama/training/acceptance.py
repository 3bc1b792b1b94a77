"""Measures how often a head predicts the right token, and so how many of its drafted tokens would be accepted."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import torch

from .batches import Batch
from .head import STEPS, Learner


@dataclasses.dataclass(frozen=True)
class Acceptance:
    """How often a head is right on texts that it has not learned from. Step s drafts the s-th token.

    Attributes:
        greedy: for each step, the share of right tokens at temperature 0, given that the steps before were right.
        sampled: for each step, the probability of acceptance at temperature 1: the sum of min(p, q) over the tokens.
        places: how many drafts were measured.
    """

    greedy: tuple[float, ...]
    sampled: tuple[float, ...]
    places: int

    @property
    def length(self) -> float:
        """The mean number of accepted tokens in a draft of `STEPS` tokens, at temperature 0."""
        alive, total = 1.0, 0.0
        for one in self.greedy:
            alive *= one
            total += alive
        return total

    def __str__(self) -> str:
        """The shares at temperature 0 in percent, such as "60 / 45 / 35 %"."""
        return " / ".join(f"{100 * one:.0f}" for one in self.greedy) + " %"


@torch.no_grad()
def acceptance(head: Learner, batches: Iterable[Batch]) -> Acceptance:
    """Measure a head on batches that it has not learned from."""
    right, alive_before = [0] * STEPS, [0] * STEPS
    shared, places = [0.0] * STEPS, [0] * STEPS
    for batch in batches:
        found = head.drafted(batch, STEPS)
        alive = batch.learned
        for step, multiplied in enumerate(found):
            logits = head.logits(multiplied).float()
            guess = logits.argmax(-1)
            is_right = (guess == batch.best) & batch.learned
            if step > 0:  # the draft that was at place p in the step before is at place p + 1 now
                alive = torch.nn.functional.pad(alive, (1, 0))[:, :-1] & batch.learned
            alive_before[step] += int(alive.sum())
            alive = alive & is_right
            right[step] += int(alive.sum())
            alive = alive & (guess == batch.follows)
            counted = head.learned(batch, step)
            q = torch.gather(logits.log_softmax(-1), -1, batch.likely).exp()
            shared[step] += float(torch.minimum(q, batch.shares).sum(-1)[counted].sum())
            places[step] += int(counted.sum())
    return Acceptance(
        tuple(r / max(1, n) for r, n in zip(right, alive_before, strict=True)),
        tuple(s / max(1, n) for s, n in zip(shared, places, strict=True)),
        alive_before[0],
    )
