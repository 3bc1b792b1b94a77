"""Decoding without the loop, for tools that measure a model or verify the loop."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from specllama import _core

from .model import Model, token_ids
from .position import num_common

Row = npt.NDArray[np.float32]
"""Raw logits [n_vocab]."""


class Direct:
    """Decodes on a model's own context, in batches of the caller's choice, in a block of ``Engine.direct``.

    The methods raise TypeError or ValueError if the tokens are not in the vocabulary or do not fit, DecodeError if
    llama.cpp fails, and RuntimeError after the end of the block. `seconds` and `decode` also raise RuntimeError if
    other code has changed the memory since the last call of a method.
    """

    def __init__(self, model: Model, changes: Callable[[], None]) -> None:
        self._model = model
        self._changes = changes
        self._is_over = False
        self._held = np.empty(0, dtype=np.int32)  # the tokens in the memory after the last call

    def clear(self) -> None:
        """Empty the memory."""
        self._sequence.keep(0)
        self._held = self._sequence.tokens()

    def prefill(self, tokens: Sequence[int] | npt.NDArray[np.int32]) -> None:
        """Have the memory hold these tokens. Missing tokens are decoded in batches, as the loop decodes a prompt."""
        sequence, wanted, n_batch = self._sequence, self._checked(tokens), self._model.settings.n_batch
        sequence.keep(num_common(wanted, sequence.tokens()))
        for start in range(sequence.num_tokens, len(wanted), n_batch):  # `keep` may have dropped more tokens than asked
            part = wanted[start : start + n_batch]
            sequence.decode(part, len(part))
        self._held = sequence.tokens()
        sequence.save()  # copies a recurrent state, so that the next `prefill` can roll back to here

    def seconds(self, batch: Sequence[int] | npt.NDArray[np.int32], *, last_only: bool = False) -> float:
        """Decode one batch after the tokens that the memory holds. Returns how many seconds it took.

        Args:
            batch: the tokens [n], at most ``n_batch``.
            last_only: whether to compute logits for the last token only, as a draft needs them, and not for all.
        """
        sequence, tokens = self._sequence, self._checked(batch)
        if not np.array_equal(sequence.tokens(), self._held):
            raise RuntimeError(
                "within the block of direct() the memory was used otherwise: call clear() or prefill() before decoding"
            )
        first_output = max(0, len(tokens) - 1) if last_only else 0
        started = time.perf_counter()
        sequence.decode(tokens, first_output)
        seconds = time.perf_counter() - started
        self._held = sequence.tokens()
        return seconds

    def decode(self, batch: Sequence[int]) -> list[Row]:
        """Decode one batch after the tokens that the memory holds. Returns the logits after each token of the batch."""
        self.seconds(batch)
        return [self._sequence.logits(i) for i in range(len(batch))]

    def decode_last(self, tokens: Sequence[int]) -> Row:
        """Decode tokens as a prompt. Returns the logits after the last token."""
        end = len(tokens) - (len(tokens) - 1) % self._model.settings.n_batch - 1
        self.prefill(tokens[:end])
        self.seconds(tokens[end:], last_only=True)
        return self._sequence.logits(len(tokens) - end - 1)

    def end(self) -> None:
        """Called at the end of the block: from now on all methods raise RuntimeError."""
        self._is_over = True

    @property
    def _sequence(self) -> _core.Sequence:
        if self._is_over:
            raise RuntimeError("the block of direct() is over, and others use the context: decode within the block")
        self._changes()
        return self._model.sequence

    def _checked(self, tokens: Sequence[int] | npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        return token_ids(tokens, "what is decoded", self._model.n_vocab)


@contextlib.contextmanager
def emptied(model: Model, changes: Callable[[], None] = lambda: None) -> Iterator[Direct]:
    """Empty a model's own context, lend it, and empty it again.

    Args:
        model: the model.
        changes: is called before each use of the context, to tell the context's other users that it changes.

    Raises:
        ValueError: the model keeps no KV cache, or has no weights.
        ClosedError: the model is closed.
    """
    direct = Direct(model, changes)
    _empty(model)
    try:
        yield direct
    finally:
        direct.end()
        _empty(model)


def _empty(model: Model) -> None:
    model.used_by_owner()  # this call tells the owner that the context has changed
    model.sequence.assume(np.empty(0, dtype=np.int32))  # then `keep` also removes the owner's tokens
    model.sequence.keep(0)
