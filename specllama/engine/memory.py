"""What the memory of a Llama holds. That is not always what is evaluated by llama_cpp's count, ``n_tokens``.

Behind a generation the memory may have the last token, too, or lack some: of a recurrent model those since the last
copy of its state. They are decoded when somebody needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import llama_cpp
import numpy as np
import numpy.typing as npt

from .watch import heed_watch

if TYPE_CHECKING:
    from specllama.llama import Llama


def tokens_held(llama: llama_cpp.Llama) -> npt.NDArray[np.intc]:
    """The tokens that the memory holds: those evaluated, unless a generation has left it otherwise."""
    n_tokens, held = llama.__dict__.get("_specllama_held", (0, 0))
    end = held if n_tokens == llama.n_tokens else llama.n_tokens
    tokens: npt.NDArray[np.intc] = llama.input_ids[:end]
    return tokens


def note_held(llama: llama_cpp.Llama, held: int) -> None:
    """Say how many of ``input_ids`` the memory holds, as long as ``n_tokens`` stays what it is."""
    llama.__dict__["_specllama_held"] = (llama.n_tokens, held)


def note_change(llama: Llama) -> None:
    """Say that somebody else than a generation has changed the memory, which holds what is evaluated."""
    note_held(llama, llama.n_tokens)
    if llama._generation is not None:
        llama._generation.disturb()


def settle(llama: Llama) -> None:
    """Have the memory hold what is evaluated, no more and no less."""
    held = tokens_held(llama)
    if len(held) == llama.n_tokens and llama._generation is None:
        return
    sequence = llama._target_sequence
    sequence.assume(held)
    try:
        sequence.keep(llama.n_tokens)
        while len(left := llama.input_ids[sequence.num_tokens : llama.n_tokens][: llama.n_batch]):
            heed_watch()  # here Python looks at signals, too
            sequence.decode(left, len(left))
    finally:
        note_held(llama, sequence.num_tokens)


def fitted(llama: Llama, state: llama_cpp.LlamaState) -> llama_cpp.LlamaState:
    """A saved state for a Llama that may have another size, and keeps no logits.

    Raises:
        ValueError: it is too long.
    """
    input_ids = np.zeros_like(llama.input_ids)
    if state.n_tokens > len(input_ids):
        raise ValueError(
            f"the state holds {state.n_tokens} tokens and n_ctx is {len(input_ids)}: "
            "create the Llama with the n_ctx of the one that saved it"
        )
    input_ids[: state.n_tokens] = state.input_ids[: state.n_tokens]
    return llama_cpp.LlamaState(
        input_ids=input_ids,
        scores=llama.scores,
        n_tokens=state.n_tokens,
        llama_state=state.llama_state,
        llama_state_size=state.llama_state_size,
        seed=state.seed,
    )
