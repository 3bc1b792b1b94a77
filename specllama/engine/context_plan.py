"""Fields of ``llama_context_params`` that specllama sets itself, in contexts opened by `open_model` or by llama_cpp."""

from __future__ import annotations

import ctypes
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import llama_cpp

from specllama import _core
from specllama.models.cache_types import values_of_block

_TYPES = ("type_k", "type_v")
_MOST_SNAPSHOTS = 8  # of a text; each takes as much memory as the recurrent state; longer rollbacks use a copy of it
_LEAST_SNAPSHOTS = 2
_MOST_OF_ALL = 16  # of all texts


@dataclasses.dataclass
class ContextPlan:
    """Snapshots of a recurrent state, branches of a text, flash attention, and the batches of models with windows.

    Make a plan when the weights are about to be loaded. A ``flash_attn`` that the user has set stays as it is. Without
    one, flash attention is on where our kernels compute it: with a float16 cache, and not for embeddings, for which
    llama.cpp would make float16 copies. A cache with quantized values needs flash attention in any case.

    Attributes:
        opened_with: the arguments that the model is opened with, by llama_cpp's names.
        num_snapshots: how many tokens at the end of a batch a recurrent state can be rolled back by.
        num_branches: how many branches of a text can be decoded beside the text.
        has_spare: whether parts of a text's memory are to be copied. That needs a sequence besides the text's own.
    """

    opened_with: Mapping[str, Any]
    num_snapshots: int = 0
    num_branches: int = 0
    has_spare: bool = False

    def __post_init__(self) -> None:
        """Note the bytes of weights that our kernels have in this thread: `fill` looks whether the model adds some."""
        self._bytes_before = _core.KernelBufferType.bytes_loaded()
        self._decides_attention = self.opened_with.get("flash_attn") is None

    def fill(self, params: Any, weights: Any | None) -> None:
        """Set snapshots, branches and flash attention in ``llama_context_params``. May be called again.

        Args:
            params: the parameters, whose sizes are set already.
            weights: the ``llama_model``; None if it is not loaded yet. Then flash attention is left for a later call.
        """
        if hasattr(params, "n_rs_seq"):
            # llama.cpp ends the process unless a batch has room for more tokens than there are snapshots.
            params.n_rs_seq = max(0, min(self.num_snapshots, _MOST_SNAPSHOTS, int(params.n_ubatch) - 2))
        count = max(self.num_branches, 1 if self.has_spare and not _is_recurrent(weights) else 0)
        if self.num_branches > 0 or self.has_spare:
            _have_sequences(params, count)
        if params.embeddings:
            _divide_among_sequences(params)
        if weights is not None and llama_cpp.llama_model_n_swa(weights) > 0:
            # llama.cpp looks for cells for all parts of a batch before it computes the first one. For the last part it
            # removes cells that have left the window by then, and that the first one still needs.
            params.n_batch = min(params.n_batch, params.n_ubatch)
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
        return _head_size(weights) % 16 == 0  # our kernels compute 16 numbers at once


def most_snapshots(num_texts: int) -> int:
    """How many snapshots of a recurrent state each of so many texts has at most, if they are in one context."""
    return min(_MOST_SNAPSHOTS, max(_LEAST_SNAPSHOTS, _MOST_OF_ALL // num_texts))


def has_flash_attention(params: Any) -> bool:
    """Whether a context with these parameters has flash attention, if its GPU supports that."""
    if hasattr(params, "flash_attn_type"):
        return bool(params.flash_attn_type != llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED)
    return bool(params.flash_attn)  # llama-cpp-python before 0.3.17


def _head_size(weights: Any) -> float:
    """How many numbers an attention head's keys have, in a loaded model."""
    architecture = _said(weights, "general.architecture")
    if found := _said(weights, f"{architecture}.attention.key_length"):
        return float(found)
    n_embd, n_head = llama_cpp.llama_model_n_embd(weights), llama_cpp.llama_model_n_head(weights)
    return n_embd / n_head if n_head > 0 else math.inf


def _said(weights: Any, name: str) -> str:
    """What a loaded model's metadata say; empty if they lack the name."""
    room = ctypes.create_string_buffer(64)
    size = llama_cpp.llama_model_meta_val_str(weights, name.encode(), room, len(room))
    return room.value.decode("utf-8", "replace") if size > 0 else ""


def _have_flash_attention(params: Any) -> None:
    """Switch on flash attention, as AUTO. ENABLED is not used, because llama_cpp passes it on to the image encoder."""
    if hasattr(params, "flash_attn_type"):
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_AUTO
    else:  # before 0.3.17
        params.flash_attn = True


def _is_recurrent(weights: Any | None) -> bool:
    """Whether a loaded model has recurrent states alone, each of which is copied as a whole."""
    if weights is None or not llama_cpp.llama_model_is_recurrent(weights):
        return False
    return not getattr(llama_cpp, "llama_model_is_hybrid", lambda _: False)(weights)


def _have_sequences(params: Any, count: int) -> None:
    """Make room for sequences besides the text's own, which share its cells.

    A context for embeddings gets none: llama.cpp may abort when it pools several sequences over the same cells. Nor
    does a context whose batch has no room for a row of each, because llama.cpp would abort.
    """
    has_room = not params.embeddings and count < min(params.n_batch, params.n_ctx or params.n_batch)
    params.n_seq_max, params.kv_unified = (1 + count, True) if has_room else (1, params.kv_unified)


def _divide_among_sequences(params: Any) -> None:
    """Round batch sizes up to multiples of ``n_seq_max``: with mean pooling, llama.cpp aborts for other sizes."""
    count = params.n_seq_max
    params.n_batch = -(-params.n_batch // count) * count
    params.n_ubatch = -(-max(params.n_batch, params.n_ubatch) // count) * count
