"""What our Llama asks for when model and context are created, and ``llama_cpp.Llama`` has no argument for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import llama_cpp

from specllama import _core
from specllama.backend.kernel_use import KernelUse
from specllama.engine.hidden import Hidden
from specllama.engine.opening import num_snapshots_of


class ContextParams:
    """Room for snapshots of a recurrent state, where release and model know them; flash attention; hidden states.

    Attributes:
        model_params: what ``llama_cpp.Llama`` fills in and hands to llama.cpp.
        context_params: the same.
    """

    _num_snapshots = 0
    """How many tokens of a batch may have to be forgotten again."""
    _attends_by: KernelUse | None = None
    """What says whether flash attention is on. None: the constructor's arguments do."""
    _hidden: Hidden | None = None
    """What the context is to show."""
    _taps: _core.Taps | None = None
    """What shows it."""

    def attend_by(self, use: KernelUse, kwargs: Mapping[str, Any]) -> None:
        """Have flash attention where our kernels compute it.

        Args:
            use: what becomes of the model that is about to be loaded.
            kwargs: what the constructor of ``llama_cpp.Llama`` is given. A ``flash_attn`` among it is left alone,
                and so is a cache that is not of float16: llama.cpp would make copies of float16 of it first.
        """
        is_half = all(kwargs.get(name) in (None, llama_cpp.GGML_TYPE_F16) for name in ("type_k", "type_v"))
        self._attends_by = use if is_half and "flash_attn" not in kwargs else None

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
        if self._attends_by is not None and hasattr(params, "flash_attn_type"):
            self._attends_by.look()  # llama_cpp asks again when the weights are loaded
            if self._attends_by.num_bytes:  # and not on layers of a GPU that cannot do it
                params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_AUTO
        return params

    @context_params.setter
    def context_params(self, params: Any) -> None:
        self.__dict__["_context_params"] = params
        self._taps = None if self._hidden is None else self._hidden.make_with(params)
