"""Plans a training: how much text the budget allows, and whether disk and memory are large enough."""

from __future__ import annotations

import bisect
import dataclasses
import math

from specllama.backend.memory import free_memory

from .fit import Recipe
from .head import Shape
from .shards import bytes_of_a_token

_FOR_THE_REST = 0.08  # the share of the hours for measuring, writing the file, and the comparison
_MEASURES_LONGER = 1.1  # the factor of suggested hours: measuring takes up to two thirtieths of the hours
_FEWEST = 500  # tokens of text
_MOST = 50_000_000  # tokens of text
_ROOM = 64 << 20  # bytes of memory, and of disk, in addition to what `require_room` counts
_COMPUTING = 6e8  # bytes that PyTorch needs besides the weights, about
_EMBEDDINGS = 40_000  # different tokens in a long text, about
_BYTES_OF_A_WEIGHT = 4 * 3 + 4  # the weight, its gradient, its momentum, and a copy while a checkpoint is written
ROWS = (8_192, 16_384, 32_768)
"""How many tokens a head can draft after learning a short, a medium or a long text (`num_rows`)."""


@dataclasses.dataclass(frozen=True)
class Rates:
    """The measured speeds of this machine.

    Attributes:
        written: how many tokens per second the target writes.
        read: for how many tokens per second the target computes states.
        trained: how many tokens per second the head learns from, in very large batches.
        step: the fixed seconds of each batch, for the optimizer.
        share: the share of a text's tokens that is learned. The other tokens are the prompt.
    """

    written: float
    read: float
    trained: float
    step: float
    share: float


@dataclasses.dataclass(frozen=True)
class Plan:
    """The steps of a training.

    Attributes:
        num_tokens: how many tokens of text the target writes, or the user gives.
        seconds: the time for writing, for computing states, and for training.
    """

    num_tokens: int
    seconds: tuple[float, float, float]

    @property
    def hours(self) -> float:
        """The time of all steps."""
        return sum(self.seconds) / (1.0 - _FOR_THE_REST) / 3600.0


def num_rows(n_vocab: int, num_tokens: int) -> int:
    """How many tokens a head can draft. It never drafts any other. More tokens cost more time in every draft."""
    wanted = ROWS[0] if num_tokens < 50_000 else ROWS[1] if num_tokens < 2_000_000 else ROWS[2]
    return min(n_vocab, wanted)


def plan_of(
    rates: Rates, *, hours: float | None, spent: float = 0.0, tokens: int | None, have: int = 0, recipe: Recipe
) -> Plan:
    """Plan a training within a budget. Either `hours` or `tokens` must be given.

    Args:
        rates: the speeds of this machine.
        hours: the budget in hours.
        spent: the hours of the budget that measuring took.
        tokens: the budget in tokens of text.
        have: how many tokens of text there are already.
        recipe: how the head learns.

    Raises:
        ValueError: the hours are too few for any text.
    """

    def seconds_of(count: int) -> tuple[float, float, float]:
        places = recipe.epochs * count
        batches = places / recipe.cells_of(places)
        return (
            max(0, count - have) / rates.written,
            count / (rates.read * rates.share),
            places / rates.trained + batches * rates.step,
        )

    if tokens is None:
        seconds = ((hours or 0.0) - spent) * 3600.0 * (1.0 - _FOR_THE_REST)
        tokens = bisect.bisect_right(range(_MOST), seconds, key=lambda count: sum(seconds_of(count))) - 1
        if tokens < _FEWEST:
            least = sum(seconds_of(_FEWEST)) / 3600 / (1 - _FOR_THE_REST) + spent
            least = math.ceil(100 * _MEASURES_LONGER * least) / 100
            raise ValueError(
                f"the hours are enough for {max(0, tokens)} tokens of text here, and a head needs {_FEWEST} at least: "
                f"give {least:.2f} hours (--hours)"
            )
    return Plan(tokens, seconds_of(tokens))


def require_room_to_train(
    shape: Shape, n_vocab: int, plan: Plan, share: float, free: int, cells: int
) -> tuple[int, int]:
    """Check that disk and memory are large enough.

    Args:
        shape: the sizes of the head.
        n_vocab: the number of tokens in the target's vocabulary.
        plan: the planned training.
        share: the share of a text's tokens that is learned (`Rates.share`).
        free: the free bytes on the disk.
        cells: the most places in a batch.

    Returns:
        The bytes that the training needs on disk and in memory.

    Raises:
        OSError: the disk is too small.
        MemoryError: the free memory is too small.
    """
    weights, output = shape.num_trained, shape.n_rows * shape.n_embd * 4
    disk = int(plan.num_tokens / share * (bytes_of_a_token(shape.num_read * shape.n_embd, shape.n_rows) + 8))
    disk += weights * 4 * 7 + output + _ROOM  # two sets of weights and momenta, the best weights, and the head's file
    memory = weights * _BYTES_OF_A_WEIGHT + output + _ROOM
    memory += min(_EMBEDDINGS, n_vocab) * shape.n_embd * 2 + int(_COMPUTING)
    memory += 4 * shape.num_frozen + 4 * cells * shape.width
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
