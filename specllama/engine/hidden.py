"""The hidden states that a context shows, and those that a head takes.

llama.cpp asks a callback of the context about each tensor that it computes (``cb_eval``), whatever the architecture: a
context shows what it was made to show. The tensors' names are llama.cpp's.
"""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any

from specllama import _core
from specllama.backend.libllama import addresses_of_ggml
from specllama.models.head_file import HeadFile

_FUNCTIONS = ("ggml_get_name", "ggml_nbytes", "ggml_backend_tensor_get")


@dataclasses.dataclass(frozen=True)
class Hidden:
    """What the contexts of a model show.

    Attributes:
        names: tensors of the graph: for a head its own state, then what its encoder makes of the target's.
        n_features: of a head: how many numbers of the target it takes for a token. 0: it is no head.
        target: of a head: the address of a context of its target, which has what the head's file lacks.
    """

    names: tuple[str, ...]
    n_features: int = 0
    target: int | None = None

    def shown_by(self, params: Any) -> _core.Taps:
        """Has the context that will be made with these ``llama_context_params`` show them.

        What is returned must live as long as the context.

        Raises:
            ValueError: this llama-cpp-python cannot.
        """
        try:
            taps = _core.Taps(addresses_of_ggml(_FUNCTIONS), self.names)
        except LookupError as error:
            raise ValueError(f"this llama-cpp-python cannot show hidden states, which heads read: {error}") from None
        params.cb_eval = ctypes.cast(taps.callback, type(params.cb_eval))
        params.cb_eval_user_data = taps.address
        if self.target is not None:
            if not hasattr(params, "ctx_other"):
                raise ValueError("heads need llama-cpp-python 0.3.36 or later: install it, or leave draft_model out")
            params.ctx_other = self.target
        return taps


def shown_to(head: HeadFile | None) -> Hidden | None:
    """What a target must show for a head: what enters a layer is what leaves the one before."""
    return None if head is None else Hidden(tuple(f"l_out-{layer - 1}" for layer in head.layers))


def of_head(head: HeadFile, target: int) -> Hidden:
    """What a head shows and takes, over a target of which this is the context's address."""
    return Hidden(("eagle3_prenorm-0", "fc_out"), len(head.layers) * head.hidden_size, target)
