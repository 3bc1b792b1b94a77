"""Decoding without the loop: for what measures a model, or verifies the loop."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from specllama import _core

from .model import Model, token_ids
from .position import num_common

Row = npt.NDArray[np.float32]
"""Raw logits [n_vocab]."""


class Direct:
    """Decodes on a model's own context, in batches of the caller's choice. ``Engine.direct`` lends it.

    Its methods raise TypeError or ValueError for what are no tokens of the vocabulary or do not fit, DecodeError where
    llama.cpp fails, and RuntimeError when the block is over.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._is_over = False

    def clear(self) -> None:
        """Forget everything."""
        self._sequence.keep(0)

    def prefill(self, tokens: Sequence[int] | npt.NDArray[np.int32]) -> None:
        """Have the memory hold these tokens, decoded as the loop decodes a prompt, as far as they are not there yet."""
        sequence, wanted, n_batch = self._sequence, self._checked(tokens), self._model.settings.n_batch
        sequence.keep(num_common(wanted, sequence.tokens()))
        for start in range(sequence.num_tokens, len(wanted), n_batch):  # keep may have had to drop more
            part = wanted[start : start + n_batch]
            sequence.decode(part, len(part))
        sequence.save()  # of a memory that cannot be cut: the next prefill comes back here

    def seconds(self, batch: Sequence[int] | npt.NDArray[np.int32], *, last_only: bool = False) -> float:
        """Decode one batch behind what the memory holds. Returns what that took, in seconds.

        Args:
            batch: the tokens [n], at most ``n_batch``.
            last_only: whether logits are computed for the last token alone, as a draft needs them. Else for all.
        """
        sequence, tokens = self._sequence, self._checked(batch)
        first_output = max(0, len(tokens) - 1) if last_only else 0
        started = time.perf_counter()
        sequence.decode(tokens, first_output)
        return time.perf_counter() - started

    def decode(self, batch: Sequence[int]) -> list[Row]:
        """Decode one batch behind what the memory holds. Returns the logits after each of its tokens."""
        self.seconds(batch)
        return [self._sequence.logits(i) for i in range(len(batch))]

    def decode_last(self, tokens: Sequence[int]) -> Row:
        """Decode tokens as a prompt. Returns the logits after the last one."""
        end = len(tokens) - (len(tokens) - 1) % self._model.settings.n_batch - 1
        self.prefill(tokens[:end])
        self.seconds(tokens[end:], last_only=True)
        return self._sequence.logits(len(tokens) - end - 1)

    def end(self) -> None:
        """The block is over: the context is somebody else's."""
        self._is_over = True

    @property
    def _sequence(self) -> _core.Sequence:
        if self._is_over:
            raise RuntimeError("the block of direct() is over, and others use the context: decode within the block")
        return self._model.sequence

    def _checked(self, tokens: Sequence[int] | npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        return token_ids(tokens, "what is decoded", self._model.n_vocab)


@contextlib.contextmanager
def emptied(model: Model) -> Iterator[Direct]:
    """Lend a model's own context, empty, and empty it again afterwards. Nobody else may use it meanwhile.

    Raises:
        ValueError: the model keeps no KV cache, or has no weights.
        ClosedError: it is closed.
    """
    direct = Direct(model)
    _empty(model)
    try:
        yield direct
    finally:
        direct.end()
        _empty(model)


def _empty(model: Model) -> None:
    model.used_by_owner()  # who learns by this that the context is no longer as they left it
    model.sequence.assume(np.empty(0, dtype=np.int32))  # it may hold what its owner decoded: cut that, too
    model.sequence.keep(0)
