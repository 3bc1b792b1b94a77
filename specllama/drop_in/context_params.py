"""What our Llama asks for when model and context are created, and ``llama_cpp.Llama`` has no argument for."""

from __future__ import annotations

from typing import Any

import llama_cpp

from specllama import _core
from specllama.engine.hidden import Hidden
from specllama.engine.opening import attend_as_kernels_do, have_branches, have_flash_attention, num_snapshots_of
from specllama.models.cache_types import values_of_block


def has_flash_attention(params: Any) -> bool:
    """Whether a context that was made with these parameters has it, where there is no GPU that cannot do it."""
    if hasattr(params, "flash_attn_type"):
        return bool(params.flash_attn_type != llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED)
    return bool(params.flash_attn)  # before 0.3.17


class ContextParams:
    """Room for snapshots of a recurrent state, where release and model know them; flash attention; hidden states.

    Attributes:
        model_params: what ``llama_cpp.Llama`` fills in and hands to llama.cpp.
        context_params: the same.
    """

    _num_snapshots = 0
    """How many tokens of a batch may have to be forgotten again."""
    _num_branches = 0
    """How many branches of a text may be decoded beside it."""
    _bytes_before: int | None = None
    """Of weights that this thread's kernels had when the constructor began. None: flash attention is decided."""
    _reads_blocks = False
    """The values of the cache are of a type that flash attention alone reads."""
    _hidden: Hidden | None = None
    """What the context is to show."""
    _taps: _core.Taps | None = None
    """What shows it."""

    def attend_as_kernels_do(self, kwargs: dict[str, Any]) -> None:
        """Have flash attention where our kernels compute it. Before the constructor of ``llama_cpp.Llama``.

        Args:
            kwargs: what that is given. With a ``flash_attn`` among it there is nothing to decide. Of a cache that is
                not of float16 llama.cpp would make copies of float16, and so it would for embeddings, without a cache.
                Values of blocks need it in any case.
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
        """Whether attention is computed in one step. A saved state lies otherwise in memory then."""
        return has_flash_attention(self.context_params)

    def _decide_attention(self, params: Any) -> None:
        """The weights are loaded, and a context is about to be made."""
        before, self._bytes_before = self._bytes_before, None
        if _core.KernelBufferType.bytes_loaded() != before:
            attend_as_kernels_do(params, self.__dict__["_model"].model)

    @property
    def model_params(self) -> Any:
        """See the class."""
        return self.__dict__["_model_params"]

    @model_params.setter
    def model_params(self, params: Any) -> None:
        self.__dict__["_model_params"] = params
        if self._hidden is not None:
            self._hidden.load_with(params)

    @property
    def context_params(self) -> Any:
        """See the class."""
        params = self.__dict__["_context_params"]
        if hasattr(params, "n_rs_seq"):
            params.n_rs_seq = num_snapshots_of(self._num_snapshots, params)
        have_branches(params, self._num_branches)
        if self._bytes_before is not None and "_model" in self.__dict__:
            self._decide_attention(params)
        if self._reads_blocks and "_model" in self.__dict__:
            have_flash_attention(params)
        return params

    @context_params.setter
    def context_params(self, params: Any) -> None:
        self.__dict__["_context_params"] = params
        self._taps = None if self._hidden is None else self._hidden.make_with(params)
