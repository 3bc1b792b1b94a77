"""What our Llama asks for when model and context are created, and ``llama_cpp.Llama`` has no argument for."""

from __future__ import annotations

from typing import Any

from specllama import _core
from specllama.engine.hidden import Hidden
from specllama.engine.opening import num_snapshots_of


class ContextParams:
    """Room for snapshots of a recurrent state, where the release and the model know them, and hidden states.

    Attributes:
        model_params: what ``llama_cpp.Llama`` fills in and hands to llama.cpp.
        context_params: the same.
    """

    _num_snapshots = 0
    """How many tokens of a batch may have to be forgotten again."""
    _hidden: Hidden | None = None
    """What the context is to show."""
    _taps: _core.Taps | None = None
    """What shows it."""

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
        return params

    @context_params.setter
    def context_params(self, params: Any) -> None:
        self.__dict__["_context_params"] = params
        self._taps = None if self._hidden is None else self._hidden.make_with(params)
