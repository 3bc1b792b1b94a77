"""What the memory of a Llama holds. That is not always what is evaluated by llama_cpp's count, ``n_tokens``.

After a generation the memory may have the last token, too, or lack some: of a recurrent model those since the last
copy of its state. They are decoded when somebody needs them.
"""

from __future__ import annotations

import weakref

import llama_cpp
import numpy as np
import numpy.typing as npt

from specllama import _core
from specllama.backend import libllama
from specllama.backend.base_class import BaseLlama

SEQUENCE = 0
"""The seq_id that llama_cpp.Llama itself works on."""


class Memory:
    """What is known of one Llama's memory: the native sequence over it, and how many tokens it holds."""

    def __init__(self) -> None:
        self._sequence: _core.Sequence | None = None
        self._noted = (0, 0)  # llama_cpp's n_tokens, and how many tokens the memory held then

    def use(self, sequence: _core.Sequence) -> None:
        """Have another sequence than the one over the Llama's own context. It is empty."""
        self._sequence = sequence

    def sequence(self, llama: BaseLlama, name: str) -> _core.Sequence:
        """See `sequence_of`."""
        if self._sequence is None:
            if llama.model_params.vocab_only:
                raise ValueError(
                    f"the {name} was opened with vocab_only=True: it has no weights, and can only tokenize"
                )
            self._sequence = _core.Sequence(_core.Decoder(libllama.API, int(llama._ctx.ctx), name), SEQUENCE)
        return self._sequence

    def tokens(self, llama: BaseLlama) -> npt.NDArray[np.intc]:
        """The tokens that the memory holds: those evaluated, unless a generation has left it otherwise."""
        n_tokens, held = self._noted
        tokens: npt.NDArray[np.intc] = llama.input_ids[: held if n_tokens == llama.n_tokens else llama.n_tokens]
        return tokens

    def note(self, n_tokens: int, held: int) -> None:
        """Say how many of ``input_ids`` the memory holds, as long as ``n_tokens`` stays what it is."""
        self._noted = (n_tokens, held)

    def close(self) -> None:
        """The context is about to be freed.

        Raises:
            BusyError: another thread uses it.
        """
        if self._sequence is not None:
            self._sequence.decoder.close()


_MEMORIES: weakref.WeakKeyDictionary[BaseLlama, Memory] = weakref.WeakKeyDictionary()


def memory_of(llama: BaseLlama) -> Memory:
    """What is known of a Llama's memory. All who use the Llama as their draft share it."""
    return _MEMORIES.setdefault(llama, Memory())


def sequence_of(llama: BaseLlama, name: str) -> _core.Sequence:
    """The one sequence of a Llama, over its native context.

    Args:
        llama: an open Llama.
        name: ``"target"`` or ``"draft"``, for messages.

    Raises:
        ValueError: the model keeps no KV cache (an embedding model).
    """
    return memory_of(llama).sequence(llama, name)


def why_no_rollback(llama: BaseLlama, name: str) -> str | None:
    """Why the memory of an open Llama cannot forget its last tokens; None if it can."""
    if sequence_of(llama, name).decoder.rollback != "none":
        return None
    return (
        f"the {name}'s memory is recurrent, and llama-cpp-python {llama_cpp.__version__} cannot copy its state "
        "to roll it back: install a later release"
    )
