"""Several simulated texts that are decoded together, as the native scheduler does it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

import numpy as np
from simulation import MOST, Decodes, Machine, Simulation

from specllama import _core_test as _test

SIZES = range(1, MOST + 2)  # that are known at first


@dataclasses.dataclass
class Seat:
    """A place with its text."""

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
        self._seats: list[Seat] = []
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
        while self._seats:
            which = "draft" if any(seat.wants[0] == "draft" for seat in self._seats) else "target"
            group = [seat for seat in self._seats if seat.wants[0] == which]
            seconds = self._decode(which, [seat.wants[1] for seat in group])
            total += seconds
            for seat in group:
                self._go_on(seat, seconds / len(group), waiting)
        return total

    def _decode(self, which: str, counts: list[int]) -> float:
        seconds = self._curves[which](sum(counts)) * float(np.exp(self._rng.normal(0.0, self._noise)))
        self._costs[which].observe(sum(counts), seconds)
        return seconds

    def _begin(self, pace: _test.Pace, waiting: Iterator[Simulation]) -> None:
        text = next(waiting, None)
        if text is not None:
            decodes = text.decodes(pace)
            seat = Seat(pace, decodes, ("target", 1))
            self._seats.append(seat)
            self._share_costs(seat)
            seat.wants = next(decodes)

    def _go_on(self, seat: Seat, seconds: float, waiting: Iterator[Simulation]) -> None:
        if seat.wants[0] == "draft":
            seat.draws = True
        else:
            seat.drew, seat.draws, seat.brought = seat.draws, False, seat.wants[1]
            self._share_costs(seat)
        try:
            seat.wants = seat.decodes.send(seconds)
        except StopIteration:
            self._seats.remove(seat)
            self._begin(seat.pace, waiting)

    def _share_costs(self, seat: Seat) -> None:
        others = [other for other in self._seats if other is not seat]
        num_drawing = 1 + sum(other.is_drawing for other in others)
        brought = sum(other.brought for other in others)
        drafts = [self._costs["draft"]] if "draft" in self._costs else []
        seat.pace.share(1 + len(others), brought, self._costs["target"], num_drawing, drafts)
