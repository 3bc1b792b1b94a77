"""Room for snapshots of a recurrent state, which must be asked for when the context is created."""

from __future__ import annotations

from typing import Any

from specllama.engine.opening import num_snapshots_of


class RoomForSnapshots:
    """Has ``llama_cpp.Llama`` create its context with room for snapshots, where the release and the model know them.

    Attributes:
        context_params: what ``llama_cpp.Llama`` fills in and hands to llama.cpp.
    """

    _num_snapshots = 0
    """How many tokens of a batch may have to be forgotten again."""

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
