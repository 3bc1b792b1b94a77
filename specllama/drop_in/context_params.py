"""Settings of models and contexts for which ``llama_cpp.Llama`` has no argument."""

from __future__ import annotations

from typing import Any

import llama_cpp

from specllama import _core
from specllama.engine.hidden import Hidden
from specllama.engine.opening import attend_as_kernels_do, have_branches, have_flash_attention, num_snapshots_of
from specllama.models.cache_types import values_of_block


def has_flash_attention(params: Any) -> bool:
    """Whether a context with these parameters has flash attention, unless its GPU cannot do that."""
    if hasattr(params, "flash_attn_type"):
        return bool(params.flash_attn_type != llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED)
    return bool(params.flash_attn)  # of llama-cpp-python before 0.3.17


def _divide_among_sequences(params: Any) -> None:
    """Round the sizes of a batch up. For a mean llama.cpp ends the process unless all sequences get equal shares."""
    count = params.n_seq_max
    params.n_batch = -(-params.n_batch // count) * count
    params.n_ubatch = -(-max(params.n_batch, params.n_ubatch) // count) * count


class ContextParams:
    """A mixin that changes the parameters which ``llama_cpp.Llama`` hands to llama.cpp.

    It adds room for snapshots of a recurrent state (where the release and the model have them), room for branches of a
    text, flash attention, and hidden states.

    Attributes:
        model_params: the parameters of the model.
        context_params: the parameters of the context.
    """

    _num_snapshots = 0
    """How many tokens at the end of a batch can be taken back."""
    _num_branches = 0
    """How many branches of a text can be decoded beside it."""
    _bytes_before: int | None = None
    """The bytes of weights that our kernels had in this thread before the constructor; None if attention is decided."""
    _reads_blocks = False
    """Whether the cache's values have a type that only flash attention can read."""
    _hidden: Hidden | None = None
    """The hidden states that the context must show; None for none."""
    _taps: _core.Taps | None = None
    """Reads these hidden states."""

    def attend_as_kernels_do(self, kwargs: dict[str, Any]) -> None:
        """Plan to turn flash attention on where our kernels compute it. Call it before the base class's constructor.

        A ``flash_attn`` that the caller has set stays as it is. With a cache that is not float16, and for embeddings,
        flash attention stays off, because llama.cpp would make float16 copies for it. Cached values in blocks need it
        in any case.

        Args:
            kwargs: the constructor's arguments. A ``flash_attn`` of None is removed.
        """
        if kwargs.get("flash_attn") is not None:
            return
        kwargs.pop("flash_attn", None)
        self._reads_blocks = values_of_block(kwargs.get("type_v")) > 1
        is_half = all(kwargs.get(name) in (None, llama_cpp.GGML_TYPE_F16) for name in ("type_k", "type_v"))
        if is_half and not kwargs.get("embedding"):
            self._bytes_before = _core.KernelBufferType.bytes_loaded()

    @property
    def has_flash_attention(self) -> bool:
        """Whether attention is computed in one step. This changes the layout of a saved state."""
        return has_flash_attention(self.context_params)

    def _decide_attention(self, params: Any) -> None:
        """Decide on flash attention. It is called when the weights are loaded, and before the context is made."""
        before, self._bytes_before = self._bytes_before, None
        if _core.KernelBufferType.bytes_loaded() != before:
            attend_as_kernels_do(params, self.__dict__["_model"].model)

    @property
    def model_params(self) -> Any:
        """The parameters of the model."""
        return self.__dict__["_model_params"]

    @model_params.setter
    def model_params(self, params: Any) -> None:
        self.__dict__["_model_params"] = params
        if self._hidden is not None:
            self._hidden.load_with(params)

    @property
    def context_params(self) -> Any:
        """The parameters of the context."""
        params = self.__dict__["_context_params"]
        if hasattr(params, "n_rs_seq"):
            params.n_rs_seq = num_snapshots_of(self._num_snapshots, params)
        have_branches(params, self._num_branches)
        if params.embeddings:
            _divide_among_sequences(params)
        if self._bytes_before is not None and "_model" in self.__dict__:
            self._decide_attention(params)
        if self._reads_blocks and "_model" in self.__dict__:
            have_flash_attention(params)
        return params

    @context_params.setter
    def context_params(self, params: Any) -> None:
        self.__dict__["_context_params"] = params
        self._taps = None if self._hidden is None else self._hidden.make_with(params)
