"""Several simulated texts that are decoded together, as the native scheduler does it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

import numpy as np
from simulation import MOST, Decodes, Machine, Simulation

from specllama import _core_test as _test

SIZES = range(1, MOST + 2)  # that are known at first


@dataclasses.dataclass
class Scheduled:
    """A text that is under way."""

    pace: _test.Pace
    decodes: Decodes
    wants: tuple[str, int]
    drew: bool = True
    draws: bool = False
    brought: int = 1

    @property
    def is_drawing(self) -> bool:
        """Whether it has a part in the draft's batches."""
        return self.drew or self.draws


class ParallelSimulation:
    """Generates texts on a machine, several at a time. What batches cost is known from an earlier process."""

    def __init__(self, machine: Machine, max_parallel: int, seed: int = 0) -> None:
        self._rng = np.random.default_rng([seed, 78])
        self._noise = machine.noise
        drawers = [("model", 512, 1)] if machine.draft else []
        self._paces = [_test.Pace(drawers=drawers) for _ in range(max_parallel)]
        self._scheduled: list[Scheduled] = []
        self._curves = {"target": machine.target, **({"draft": machine.draft} if machine.draft else {})}
        self._costs = {which: _test.CostModel() for which in self._curves}
        for which, curve in self._curves.items():
            self._costs[which].restore({n: curve(n) for n in SIZES})

    def seconds(self, texts: Iterable[Simulation]) -> float:
        """What all of them take, the draft's prompts included, the target's not."""
        waiting = iter(texts)
        total = 0.0
        for pace in self._paces:
            self._begin(pace, waiting)
        while self._scheduled:
            which = "draft" if any(one.wants[0] == "draft" for one in self._scheduled) else "target"
            group = [one for one in self._scheduled if one.wants[0] == which]
            seconds = self._decode(which, [one.wants[1] for one in group])
            total += seconds
            for one in group:
                self._go_on(one, seconds / len(group), waiting)
        return total

    def _decode(self, which: str, counts: list[int]) -> float:
        seconds = self._curves[which](sum(counts)) * float(np.exp(self._rng.normal(0.0, self._noise)))
        self._costs[which].observe(sum(counts), seconds)
        return seconds

    def _begin(self, pace: _test.Pace, waiting: Iterator[Simulation]) -> None:
        text = next(waiting, None)
        if text is not None:
            decodes = text.decodes(pace)
            one = Scheduled(pace, decodes, ("target", 1))
            self._scheduled.append(one)
            self._share_costs(one)
            one.wants = next(decodes)

    def _go_on(self, one: Scheduled, seconds: float, waiting: Iterator[Simulation]) -> None:
        if one.wants[0] == "draft":
            one.draws = True
        else:
            one.drew, one.draws, one.brought = one.draws, False, one.wants[1]
            self._share_costs(one)
        try:
            one.wants = one.decodes.send(seconds)
        except StopIteration:
            self._scheduled.remove(one)
            self._begin(one.pace, waiting)

    def _share_costs(self, one: Scheduled) -> None:
        others = [other for other in self._scheduled if other is not one]
        num_drawing = 1 + sum(other.is_drawing for other in others)
        brought = sum(other.brought for other in others)
        drafts = [self._costs["draft"]] if "draft" in self._costs else []
        one.pace.share(1 + len(others), brought, self._costs["target"], num_drawing, drafts)
