"""How often a head is right: what a draft of so many tokens would be accepted for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import torch

from .batches import Batch
from .head import STEPS, AnyHead


@dataclasses.dataclass(frozen=True)
class Acceptance:
    """Of texts that the head has not learned from, step by step.

    Attributes:
        greedy: at temperature 0, given that the steps before were right.
        sampled: at temperature 1: the mass that head and target have in common, on the text's own tokens.
        places: how many drafts were begun.
    """

    greedy: tuple[float, ...]
    sampled: tuple[float, ...]
    places: int

    @property
    def length(self) -> float:
        """Tokens accepted of a draft of three at temperature 0, in the mean."""
        alive, total = 1.0, 0.0
        for one in self.greedy:
            alive *= one
            total += alive
        return total

    def __str__(self) -> str:
        """In percent."""
        return " / ".join(f"{100 * one:.0f}" for one in self.greedy) + " %"


@torch.no_grad()
def acceptance(head: AnyHead, batches: Iterable[Batch]) -> Acceptance:
    """Measure a head."""
    right, alive_before = [0] * STEPS, [0] * STEPS
    shared, places = [0.0] * STEPS, [0] * STEPS
    for batch in batches:
        found = head(batch.embedded, head.read(batch.states), STEPS)
        alive = batch.learned
        for step, multiplied in enumerate(found):
            logits = head.logits(multiplied).float()
            guess = logits.argmax(-1)
            is_right = (guess == batch.best) & batch.learned
            if step > 0:  # the draft began so many places before
                alive = torch.nn.functional.pad(alive, (1, 0))[:, :-1] & batch.learned
            alive_before[step] += int(alive.sum())
            alive = alive & is_right
            right[step] += int(alive.sum())
            alive = alive & (guess == batch.follows)
            counted = batch.learned.clone()
            counted[:, :step] = False
            q = torch.gather(logits.log_softmax(-1), -1, batch.likely).exp()
            shared[step] += float(torch.minimum(q, batch.shares).sum(-1)[counted].sum())
            places[step] += int(counted.sum())
    return Acceptance(
        tuple(r / max(1, n) for r, n in zip(right, alive_before, strict=True)),
        tuple(s / max(1, n) for s, n in zip(shared, places, strict=True)),
        alive_before[0],
    )
