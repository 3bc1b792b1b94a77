"""Checks that logits are the same to the last bit in batches of every size, if the target promises that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from specllama.engine import Direct, Row

from .verdicts import BatchTest

if TYPE_CHECKING:
    from specllama import Llama

NUM_ROWS = 16
"""The number of tokens whose logits are compared: in batches of one, of two, and so on, up to all in one batch."""
LENGTHS = (64, 600, 1100)
"""The numbers of tokens before the compared ones. From 512 on, llama.cpp's attention has other code for one token."""


def lengths_for(llm: Llama) -> tuple[int, ...]:
    """The lengths that fit into the context; none if the target does not promise equal logits."""
    return tuple(length for length in LENGTHS if length + NUM_ROWS <= llm.n_ctx()) if llm.batch_invariant else ()


def compare_batches(llm: Llama, tokens: Sequence[int], length: int, advance: Callable[[], None]) -> BatchTest:
    """Decode the same tokens after the same text, in batches of every size.

    Args:
        llm: the target. Its cache is emptied.
        tokens: a text, which is repeated as often as needed.
        length: the number of tokens before the compared ones.
        advance: called after each size.
    """
    needed = length + NUM_ROWS
    text = (list(tokens) * (needed // len(tokens) + 1))[:needed]
    with llm.engine.direct() as direct:
        single: list[Row] = []
        differing = []
        for size in range(1, min(NUM_ROWS, llm.n_batch) + 1):
            rows = _rows(direct, text[:length], text[length:], size)
            single = single or rows
            if not all(np.array_equal(one, other) for one, other in zip(single, rows, strict=True)):
                differing.append(size)
            advance()
    return BatchTest(length, NUM_ROWS, tuple(differing))


def _rows(direct: Direct, before: Sequence[int], tokens: Sequence[int], size: int) -> list[Row]:
    direct.prefill(before)
    batches = (tokens[first : first + size] for first in range(0, len(tokens), size))
    return [row.copy() for batch in batches for row in direct.decode(batch)]
