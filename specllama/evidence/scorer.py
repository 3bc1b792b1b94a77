"""The target's logits by direct decoding: the loop that is to be verified has no part in them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from specllama import _core

if TYPE_CHECKING:
    from specllama.llama import Llama

Row = npt.NDArray[np.float32]
"""Raw logits [n_vocab]."""
Probabilities = npt.NDArray[np.float64]
"""The probability of every token [n_vocab]; sums to 1."""


class Scorer:
    """Decodes on the target's context, in batches of the caller's choice."""

    def __init__(self, sequence: _core.Sequence, n_batch: int) -> None:
        self._sequence = sequence
        self._n_batch = n_batch

    def clear(self) -> None:
        """Forget everything."""
        self._sequence.keep(0)

    def prefill(self, tokens: Sequence[int]) -> None:
        """Have the cache hold these tokens, decoded as the loop decodes a prompt, as far as they are not there yet."""
        wanted = np.asarray(tokens, dtype=np.int32)
        held = self._sequence.tokens()
        common = min(len(wanted), len(held))
        differ = np.flatnonzero(wanted[:common] != held[:common])
        self._sequence.keep(int(differ[0]) if differ.size else common)
        for start in range(self._sequence.num_tokens, len(wanted), self._n_batch):  # keep may have had to drop more
            part = wanted[start : start + self._n_batch]
            self._sequence.decode(part, len(part))

    def decode(self, batch: Sequence[int]) -> list[Row]:
        """Decode one batch behind what the cache holds, and return the logits after each of its tokens."""
        self._sequence.decode(np.asarray(batch, dtype=np.int32), 0)
        return [self._sequence.logits(i) for i in range(len(batch))]

    def decode_last(self, tokens: Sequence[int]) -> Row:
        """Decode tokens as a prompt, and return the logits after the last one."""
        end = len(tokens) - (len(tokens) - 1) % self._n_batch - 1
        self.prefill(tokens[:end])
        last = np.asarray(tokens[end:], dtype=np.int32)
        self._sequence.decode(last, len(last) - 1)
        return self._sequence.logits(len(last) - 1)


@contextlib.contextmanager
def scorer_of(llm: Llama) -> Iterator[Scorer]:
    """Lend the target's context, empty, and empty it again afterwards.

    Raises:
        BusyError: another thread is generating.
    """
    with llm.engine.own.exclusive():
        sequence = llm.engine.own.sequence
        llm.n_tokens = 0  # a generation under way notices by this that the cache is no longer its own
        sequence.assume(np.empty(0, dtype=np.int32))
        sequence.keep(0)
        try:
            yield Scorer(sequence, llm.n_batch)
        finally:
            sequence.keep(0)


def probabilities(row: Row, params: _core.SamplerParams, recent: Sequence[int] = ()) -> Probabilities:
    """What the sampler chain makes of logits.

    Args:
        row: logits [n_vocab].
        params: the chain.
        recent: tokens generated so far, which the penalties see.
    """
    distribution = _core.distribution(row, params, list(recent))
    result = np.zeros(len(row))
    result[distribution.ids] = distribution.probs
    return result
