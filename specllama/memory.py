"""What the memory of a Llama holds. That is not always what is evaluated by llama_cpp's count, ``n_tokens``.

Behind a generation the memory may have the last token, too, or lack some: of a recurrent model those since the last
copy of its state. They are decoded when somebody needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .watch import heed_watch

if TYPE_CHECKING:
    import llama_cpp

    from .llama import Llama


def tokens_held(llama: llama_cpp.Llama) -> npt.NDArray[np.intc]:
    """The tokens that the memory holds: those evaluated, unless a generation has left it otherwise."""
    n_tokens, held = llama.__dict__.get("_specllama_held", (0, 0))
    end = held if n_tokens == llama.n_tokens else llama.n_tokens
    tokens: npt.NDArray[np.intc] = llama.input_ids[:end]
    return tokens


def note_held(llama: llama_cpp.Llama, held: int) -> None:
    """Say how many of ``input_ids`` the memory holds, as long as ``n_tokens`` stays what it is."""
    llama.__dict__["_specllama_held"] = (llama.n_tokens, held)


def settle(llama: Llama) -> None:
    """Have the memory hold what is evaluated, no more and no less."""
    held = tokens_held(llama)
    if len(held) == llama.n_tokens and llama._generation is None:
        return
    context = llama._target_context
    context.assume(held)
    try:
        context.keep(llama.n_tokens)
        while len(left := llama.input_ids[context.num_tokens : llama.n_tokens][: llama.n_batch]):
            heed_watch()  # here Python looks at signals, too
            context.decode(left, len(left))
    finally:
        note_held(llama, context.num_tokens)
