"""Measures how fast this machine computes states and trains."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .batches import Batches
from .fit import Fit, learner_of, recipe_of
from .shards import write_shards
from .start import Start
from .text import Text

if TYPE_CHECKING:
    from specllama.engine import Engine

_CELLS = (256, 2048)
_LEAST_SHARE = 0.3  # of a large batch's time, at least this share is taken to depend on its size


def speed_of_training(
    engine: Engine,
    start: Start,
    texts: Sequence[Text],
    rows: npt.NDArray[np.int64],
    device: str,
    seconds: float,
) -> tuple[float, float, float]:
    """Measure the speed on a few texts.

    Args:
        engine: the target, which must show its states.
        start: what the training starts from.
        texts: the texts.
        rows: the tokens that the head can draft.
        device: PyTorch's device for computing.
        seconds: the time to spend on computing states.

    Returns:
        How many tokens the target reads per second to compute states; how many tokens are learned per second in very
        large batches; and the fixed time of each batch in seconds.
    """
    with tempfile.TemporaryDirectory(prefix="specllama-speed-") as folder:
        begun, read = time.monotonic(), 0

        def note(size: int, _: int) -> None:
            nonlocal read
            read = size

        def enough(size: int) -> bool:
            return size > 0 and time.monotonic() - begun > seconds

        write_shards(engine, texts, rows, len(start.target.layers), Path(folder), enough, note)
        of_states = read / (time.monotonic() - begun)
        batches = Batches(start.target, rows, Path(folder), device)
        run = Fit(learner_of(start, rows, batches, device), device, recipe_of(start.kind))
        (few, of_few), (many, of_many) = (_timed(run, batches, min(cells, run.recipe.most_cells)) for cells in _CELLS)
        each = (of_many - of_few) / max(1, many - few)
        each = max(each, _LEAST_SHARE * of_many / many)  # the difference may be wrong if the machine was busy meanwhile
        return of_states, 1.0 / each, max(0.0, of_few - few * each)


def _timed(run: Fit, batches: Batches, cells: int) -> tuple[int, float]:
    """The learned places in a batch, and the seconds for it: the shorter time of two attempts."""
    batch = next(itertools.chain(batches.learned(cells, 0), batches.held_out(cells)))
    seconds = []
    for _ in range(2):
        begun = time.monotonic()
        run.step(batch, 0.5)
        seconds.append(time.monotonic() - begun)
    return max(1, int(batch.learned.sum())), min(seconds)
