"""The weights of a Llama that drafts: they stay while others work on them, even if its owner closes it meanwhile."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from specllama.backend.base_class import BaseLlama
from specllama.engine.closed import raise_closed
from specllama.engine.memory import memory_of


class Weights:
    """Stands where a Llama has its ``_stack``, which frees all that it has loaded.

    Closing it frees the Llama's context, and the rest once nobody works on it.
    """

    def __init__(self, llama: BaseLlama) -> None:
        self._memory = memory_of(llama)
        self._context: Any = llama._ctx
        self._all: Any = llama._stack
        self._lock = threading.RLock()  # the garbage collector may come back here
        self._num_users = 0
        self._is_closed = False

    def close(self) -> None:
        """What the owner does.

        Raises:
            BusyError: a text is being decoded in the Llama's own context.
        """
        with self._lock:
            self._memory.close()
            self._is_closed = True
            self._context.close()
            self._free_unused()

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Within the block they are there.

        Raises:
            ClosedError: they are not.
        """
        with self._lock:
            if self._is_closed:
                raise_closed()
            self._num_users += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_users -= 1
                self._free_unused()

    def _free_unused(self) -> None:
        if self._is_closed and not self._num_users:
            self._all.close()


def weights_of(llama: BaseLlama) -> Weights:
    """Those of an open Llama, which may be the draft of several."""
    if not isinstance(llama._stack, Weights):
        stack: Any = Weights(llama)
        llama._stack = stack
    weights: Any = llama._stack
    return weights  # type: ignore[no-any-return]
