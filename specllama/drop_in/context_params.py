"""Opens models by ``llama_cpp.Llama``'s constructor, with settings for which it has no argument."""

from __future__ import annotations

from typing import Any

from specllama import _core
from specllama.backend.kernel_use import loading
from specllama.engine.context_plan import ContextPlan, has_flash_attention
from specllama.engine.hidden import Hidden
from specllama.models.contents import kinds_of
from specllama.models.loading import checked_loading

from .base_class import BaseLlama
from .lending import lent


class ContextParams(BaseLlama):
    """A mixin that changes the parameters which ``llama_cpp.Llama`` hands to llama.cpp, as a `ContextPlan` says."""

    _plan: ContextPlan
    _hidden: Hidden | None = None
    """The hidden states that the context must give out for a head; None for none."""
    _taps: _core.Taps | None = None
    """The object that reads these hidden states."""

    def _construct(self, path: str, kwargs: dict[str, Any], *, name: str, kernels: str | None, **planned: Any) -> None:
        """Call llama_cpp's constructor, and lend the model.

        Args:
            path: the model's file.
            kwargs: the arguments of llama_cpp's constructor. Without ``flash_attn``, the plan decides on it.
            name: ``"target"`` or ``"draft"``, for messages.
            kernels: the user's choice of kernels.
            planned: fields of the `ContextPlan`, such as ``num_snapshots``.

        Raises:
            MemoryError, OSError, RuntimeError, TypeError, ValueError: the model cannot be opened.
        """
        with (
            checked_loading(path, overrides=kwargs.get("kv_overrides")) as weights,
            loading(kernels, kinds_of(path)) as use,
        ):
            self._plan = ContextPlan(kwargs, **planned)
            super().__init__(path, **kwargs)
        self.n_batch = min(self.n_batch, self.context_params.n_batch)
        if self._hidden is not None:
            self._hidden.begin(self._ctx.ctx)
        lent(self, name, use, self._hidden, self._taps, weights)

    @property
    def has_flash_attention(self) -> bool:
        """Whether the context uses flash attention, with which a saved state has another layout."""
        return has_flash_attention(self.context_params)

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
        if "_ctx" not in self.__dict__:  # llama_cpp's constructor still sets parameters: the context is not made yet
            model = self.__dict__.get("_model")
            self._plan.fill(params, None if model is None else model.model)
        return params

    @context_params.setter
    def context_params(self, params: Any) -> None:
        self.__dict__["_context_params"] = params
        self._taps = None if self._hidden is None else self._hidden.make_with(params)
