"""How much text a budget is enough for, what it takes of the machine, and whether the machine has it."""

from __future__ import annotations

import bisect
import dataclasses

from specllama.backend.memory import free_memory

from .fit import EPOCHS, cells_of
from .shards import bytes_of_a_token
from .state_head import AnyShape

_FOR_THE_REST = 0.08  # of the hours: measuring, the file, and the comparison
_FEWEST = 500  # tokens of text
_MOST = 50_000_000
_ROOM = 64 << 20  # bytes beside what is counted
_COMPUTING = 6e8  # bytes that PyTorch needs beside the weights, about
_EMBEDDINGS = 40_000  # different tokens of a long text, about
_BYTES_OF_A_WEIGHT = 4 * 3 + 4  # itself, its gradient, its momentum; and a copy while it is kept
ROWS = (8_192, 16_384, 32_768)
"""How many tokens a head says, by how much text there is to count them in."""


@dataclasses.dataclass(frozen=True)
class Rates:
    """What was measured here.

    Attributes:
        written: tokens a second that the target writes.
        read: tokens a second whose states it computes.
        trained: tokens a second that the head learns from, in batches without end.
        step: seconds that each batch takes besides, whatever its size: what the optimizer does.
        share: of a text's tokens so many are learned: the others are what was asked.
    """

    written: float
    read: float
    trained: float
    step: float
    share: float


@dataclasses.dataclass(frozen=True)
class Plan:
    """What will be done.

    Attributes:
        num_tokens: that the target writes, or that the user gives.
        seconds: for writing, states and training.
    """

    num_tokens: int
    seconds: tuple[float, float, float]

    @property
    def hours(self) -> float:
        """Of all together."""
        return sum(self.seconds) / (1.0 - _FOR_THE_REST) / 3600.0


def num_rows(n_vocab: int, num_tokens: int) -> int:
    """How many tokens a head says: what it does not say it never drafts, and each row is read for each draft."""
    wanted = ROWS[0] if num_tokens < 50_000 else ROWS[1] if num_tokens < 2_000_000 else ROWS[2]
    return min(n_vocab, wanted)


def plan_of(rates: Rates, *, hours: float | None, tokens: int | None, have: int = 0, epochs: int = EPOCHS) -> Plan:
    """Divide a budget.

    Args:
        rates: what was measured.
        hours: the budget; or
        tokens: of text.
        have: tokens of text that are there.
        epochs: passes over it.

    Raises:
        ValueError: the hours are not enough for any text.
    """

    def seconds_of(count: int) -> tuple[float, float, float]:
        places = epochs * count
        batches = places / cells_of(places)
        return (
            max(0, count - have) / rates.written,
            count / (rates.read * rates.share),
            places / rates.trained + batches * rates.step,
        )

    if tokens is None:
        seconds = (hours or 0.0) * 3600.0 * (1.0 - _FOR_THE_REST)
        tokens = bisect.bisect_right(range(_MOST), seconds, key=lambda count: sum(seconds_of(count))) - 1
        if tokens < _FEWEST:
            least = sum(seconds_of(_FEWEST)) / 3600 / (1 - _FOR_THE_REST)
            raise ValueError(
                f"the hours are enough for {max(0, tokens)} tokens of text here, and a head needs {_FEWEST} at least: "
                f"give {least:.2f} hours more than measuring takes (--hours)"
            )
    return Plan(tokens, seconds_of(tokens))


def require_room(shape: AnyShape, n_vocab: int, plan: Plan, share: float, free: int) -> tuple[int, int]:
    """What it takes of disk and memory, in bytes.

    Args:
        shape: the head's.
        n_vocab: tokens of the target.
        plan: what will be done.
        share: see `Rates`.
        free: bytes that the disk has room for.

    Raises:
        OSError: the disk has less.
        MemoryError: the memory has less.
    """
    weights, output = shape.num_trained, shape.n_rows * shape.n_embd * 4
    disk = int(plan.num_tokens / share * (bytes_of_a_token(shape.num_read * shape.n_embd, shape.n_rows) + 8))
    disk += weights * 4 * 7 + output + _ROOM  # weights and momenta, twice; the best; the file
    memory = weights * _BYTES_OF_A_WEIGHT + output + _ROOM
    memory += min(_EMBEDDINGS, n_vocab) * shape.n_embd * 2 + int(_COMPUTING)
    if free < disk:
        raise OSError(
            f"the training needs {disk / 1e9:.1f} GB of disk, and {free / 1e9:.1f} GB are free: make room, set "
            "SPECLLAMA_CACHE to a folder on another disk, or give a smaller budget"
        )
    available = free_memory()
    if available < memory:
        raise MemoryError(
            f"the training needs {memory / 1e9:.1f} GB of memory, and {available / 1e9:.1f} GB are free: close other "
            "programs, or train for a smaller model"
        )
    return disk, memory
