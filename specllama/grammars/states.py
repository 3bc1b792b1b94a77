"""What is known at each place of a text. The text changes from call to call, because drafted tokens may be rejected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

_State = TypeVar("_State")


class States(Generic[_State]):
    """The state of each place in a text. Each is computed from the one before, and all are kept.

    Drafted tokens may be rejected. Then their states are dropped.

    Args:
        first: the state at the beginning.
        behind: gives the state behind a token, from the state before it, the token, and the number of tokens up to it.
    """

    def __init__(self, first: _State, behind: Callable[[_State, int, int], _State]) -> None:
        self._next = behind
        self._steps = np.empty(0, dtype=np.intc)
        self._states = [first]  # by how many tokens are before

    def behind(self, recent: npt.NDArray[np.intc]) -> _State:
        """The state behind the tokens generated so far."""
        both = min(len(recent), len(self._steps))
        different = np.flatnonzero(recent[:both] != self._steps[:both])
        common = int(different[0]) if len(different) else both
        del self._states[common + 1 :]
        self._steps = recent
        for token in recent[common:].tolist():
            self._states.append(self._next(self._states[-1], token, len(self._states)))
        return self._states[-1]
