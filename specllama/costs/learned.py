"""What an engine learns of T(n), kept from one process to the next."""

from __future__ import annotations

import logging
import math
import statistics
import sys
import time
from collections.abc import Mapping
from typing import Any

from specllama import _core
from specllama.backend.base_class import BaseLlama

from . import files
from .key import cost_key

_LOGGER = logging.getLogger("specllama")
_MATERIAL = math.log(1.1)  # a size that costs a tenth more or less than the others say
_PAUSE = 1.0  # seconds between two writes


class CostMemory:
    """Gives an engine the curves that are known of its models, and keeps them where it has learned better.

    It disturbs no generation: what cannot be read is not known, and what cannot be written is not kept.
    """

    def __init__(
        self, engine: _core.Speculator | _core.Scheduler, target: BaseLlama, drafts: Mapping[str, BaseLlama]
    ) -> None:
        self._engine = engine
        self._keys = {role: cost_key(llama, role) for role, llama in {"target": target, **drafts}.items()}
        self._kept: dict[str, dict[int, float]] = {}
        self._rest_until = 0.0
        self.restore()

    def restore(self) -> None:
        """Have the engine believe what is known, in place of what it has learned."""
        self._kept = {role: files.read(key) for role, key in self._keys.items()}
        self._engine.restore_costs(self._kept["target"], self._kept.get("draft", {}))

    def keep(self) -> None:
        """Write what has changed, if anything has and the last time is not just past."""
        now = time.monotonic()
        if now < self._rest_until or sys.is_finalizing():  # a stream may be closed when open() is gone already
            return
        costs = self._engine.costs
        known = {"target": costs.target, "draft": costs.draft}
        for role, key in self._keys.items():
            if changed(self._kept[role], known[role]):
                self._rest_until = now + _PAUSE
                self._write(role, key, known[role])

    def _write(self, role: str, key: dict[str, Any], costs: dict[int, float]) -> None:
        try:
            files.write(key, costs)
        except (OSError, RuntimeError) as error:
            _LOGGER.debug("what batches cost the %s cannot be kept: %s", role, error)
        else:
            self._kept[role] = files.thinned(costs)


def changed(before: Mapping[int, float], now: Mapping[int, float]) -> bool:
    """Whether a curve says another thing than the one before: of other sizes, or of one that costs another share.

    A size is missing only if an engine has unlearned it: it knows all that was restored.

    A factor that is common to all sizes is left out. A hot processor or a neighbour changes it from hour to hour, and
    an engine takes it from its own first batches anyway: only the shape is worth keeping.
    """
    old, new = _seconds_per_token(before), _seconds_per_token(now)
    if not new:
        return False
    if new.keys() != old.keys():
        return True
    shifts = [math.log(new[number] / old[number]) for number in new]
    common = statistics.median(shifts)
    return any(abs(shift - common) > _MATERIAL for shift in shifts)


def _seconds_per_token(costs: Mapping[int, float]) -> dict[int, float]:
    # By class: of large sizes another one stands for its class each time, and costs as much a token.
    return {files.size_class(n): seconds / n for n, seconds in files.thinned(costs).items()}
