"""Room for snapshots of a recurrent state, which must be asked for when the context is created."""

from __future__ import annotations

from typing import Any

_MOST = 8  # each takes as much memory as the state; drafts that are longer are rolled back by a copy


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
            # llama.cpp aborts the process unless a batch has room for more tokens than there are states to keep.
            params.n_rs_seq = max(0, min(self._num_snapshots, _MOST, params.n_ubatch - 2))
        return params

    @context_params.setter
    def context_params(self, params: Any) -> None:
        self.__dict__["_context_params"] = params
