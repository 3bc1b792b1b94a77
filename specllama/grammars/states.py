"""Keeps a state for each place of a text, while the text changes: drafted tokens are appended, and may be rejected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

_State = TypeVar("_State")


class States(Generic[_State]):
    """The state of each place in a text. Each state is computed from the state before, and all states are kept.

    When drafted tokens are rejected, their states are dropped.

    Args:
        first: the state at the beginning of the text.
        behind: computes the state behind a token from the state before the token, the token, and the number of tokens
            up to and with this token.
    """

    def __init__(self, first: _State, behind: Callable[[_State, int, int], _State]) -> None:
        self._next = behind
        self._steps = np.empty(0, dtype=np.intc)
        self._states = [first]  # by the number of tokens before the place

    def behind(self, recent: npt.NDArray[np.intc]) -> _State:
        """The state behind all tokens generated so far, drafted ones included."""
        both = min(len(recent), len(self._steps))
        different = np.flatnonzero(recent[:both] != self._steps[:both])
        common = int(different[0]) if len(different) else both
        del self._states[common + 1 :]
        self._steps = recent
        for token in recent[common:].tolist():
            self._states.append(self._next(self._states[-1], token, len(self._states)))
        return self._states[-1]
