"""What a context has besides what its user has asked for, whoever opens it: our opener, or llama_cpp's constructor."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import llama_cpp

from specllama import _core
from specllama.models.cache_types import values_of_block

_TYPES = ("type_k", "type_v")
_MOST_SNAPSHOTS = 8  # each takes as much memory as the state; for longer drafts a copy is used


@dataclasses.dataclass
class ContextPlan:
    """Snapshots of a recurrent state, branches of a text, and flash attention.

    Make it when the weights are about to be loaded. A ``flash_attn`` that the user has set stays as it is. Without one,
    flash attention is on where our kernels compute it: not with a cache that is not float16, and not for embeddings,
    because llama.cpp would make float16 copies for it. Cached values in blocks need it in any case.

    Attributes:
        opened_with: the arguments that the model is opened with, by llama_cpp's names.
        num_snapshots: how many tokens at the end of a batch can be taken back from a recurrent state.
        num_branches: how many branches of a text can be decoded beside it.
    """

    opened_with: Mapping[str, Any]
    num_snapshots: int = 0
    num_branches: int = 0

    def __post_init__(self) -> None:
        """Remember how many bytes of weights our kernels have in this thread."""
        self._bytes_before = _core.KernelBufferType.bytes_loaded()
        self._decides_attention = self.opened_with.get("flash_attn") is None

    def fill(self, params: Any, weights: Any | None) -> None:
        """Set all of it in ``llama_context_params``. It may be called again.

        Args:
            params: the parameters, with all sizes.
            weights: the ``llama_model``; None if it is not loaded yet.
        """
        if hasattr(params, "n_rs_seq"):
            # llama.cpp ends the process unless a batch has room for more tokens than there are snapshots.
            params.n_rs_seq = max(0, min(self.num_snapshots, _MOST_SNAPSHOTS, int(params.n_ubatch) - 2))
        if self.num_branches > 0:
            _have_branches(params, self.num_branches)
        if params.embeddings:
            _divide_among_sequences(params)
        if weights is not None and self._decides_attention:
            self._decides_attention = False
            if values_of_block(self.opened_with.get("type_v")) > 1 or self._kernels_attend(params, weights):
                _have_flash_attention(params)

    def _kernels_attend(self, params: Any, weights: Any) -> bool:
        given = self.opened_with
        if _core.KernelBufferType.bytes_loaded() == self._bytes_before or not hasattr(params, "flash_attn_type"):
            return False
        if given.get("embedding") or any(given.get(name) not in (None, llama_cpp.GGML_TYPE_F16) for name in _TYPES):
            return False
        n_embd, n_head = llama_cpp.llama_model_n_embd(weights), llama_cpp.llama_model_n_head(weights)
        return bool(n_head > 0 and n_embd % (16 * n_head) == 0)  # our kernels compute 16 numbers at once


def has_flash_attention(params: Any) -> bool:
    """Whether a context with these parameters has flash attention, unless its GPU cannot do that."""
    if hasattr(params, "flash_attn_type"):
        return bool(params.flash_attn_type != llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED)
    return bool(params.flash_attn)  # of llama-cpp-python before 0.3.17


def _have_flash_attention(params: Any) -> None:
    """Switch on flash attention, as AUTO. ENABLED would do too much: llama_cpp gives it to the image encoder, too."""
    if hasattr(params, "flash_attn_type"):
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_AUTO
    else:  # before 0.3.17
        params.flash_attn = True


def _have_branches(params: Any, count: int) -> None:
    """Make room for branches of a text, as sequences over its cells.

    A context that embeds has none: llama.cpp may end the process when it pools several sequences over the same cells.
    Nor has one without room for a row of each in a batch, for which llama.cpp would end the process, too.
    """
    has_room = not params.embeddings and count < min(params.n_batch, params.n_ctx or params.n_batch)
    params.n_seq_max, params.kv_unified = (1 + count, True) if has_room else (1, params.kv_unified)


def _divide_among_sequences(params: Any) -> None:
    """Round the sizes of a batch up. For a mean llama.cpp ends the process unless all sequences get equal shares."""
    count = params.n_seq_max
    params.n_batch = -(-params.n_batch // count) * count
    params.n_ubatch = -(-max(params.n_batch, params.n_ubatch) // count) * count
