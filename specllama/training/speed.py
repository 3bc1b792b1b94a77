"""How fast this machine reads states and trains."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .batches import Batches
from .fit import Fit, new_head
from .shards import write_shards
from .target import Target
from .text import Text

if TYPE_CHECKING:
    from specllama.engine.engine import Engine

_CELLS = 1024


def speed_of_training(
    engine: Engine, target: Target, texts: Sequence[Text], rows: npt.NDArray[np.int64], device: str, seconds: float
) -> tuple[float, float]:
    """Tokens a second whose states are computed, and that are trained: both tried on some texts."""
    with tempfile.TemporaryDirectory(prefix="specllama-speed-") as folder:
        begun, read = time.monotonic(), 0

        def note(size: int, _: int) -> None:
            nonlocal read
            read = size

        def enough(size: int) -> bool:
            return size > 0 and time.monotonic() - begun > seconds

        write_shards(engine, texts, rows, Path(folder), enough, note)
        of_states = read / (time.monotonic() - begun)
        batches = Batches(target, rows, Path(folder), device)
        run = Fit(new_head(target, rows, batches, device), device)
        speeds = []
        windows = [*batches.held_out(_CELLS), *batches.learned(_CELLS, 0)]
        for batch in (windows * 3)[:3]:
            begun = time.monotonic()
            run.step(batch, 0.5)
            speeds.append(int(batch.learned.sum()) / (time.monotonic() - begun))
        return of_states, max(speeds)
