"""What was answered before, for lookup to search in: some tokens, in memory alone.

A pool of earlier texts in front of the present one (the idea of suffix decoding, arXiv 2411.04975).
"""

from __future__ import annotations

import collections
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from .options import checked_index

_SEPARATOR = -1  # no token: no match reaches over it


class EarlierAnswers:
    """The last answers of an engine. Any thread may use it.

    Args:
        most: tokens that are kept; 0: none.

    Raises:
        TypeError, ValueError: no int, or below 0.
    """

    def __init__(self, most: Any = 0) -> None:
        self._most = checked_index("most", most, "an int: tokens of earlier answers that are kept; 0 keeps none")
        if self._most < 0:
            raise ValueError(f"most={most} is below 0: give tokens of earlier answers that are kept; 0 keeps none")
        self._answers: collections.deque[npt.NDArray[np.int32]] = collections.deque()
        self._size = 0
        self._lock = threading.Lock()

    def add(self, answer: npt.NDArray[np.integer[Any]]) -> None:
        """Keep the tokens [n] of an answer, in place of the oldest."""
        if self._most == 0 or len(answer) == 0:
            return
        with self._lock:
            self._answers.append(np.array(answer[-self._most :], np.int32))
            self._size += len(self._answers[-1])
            while self._size > self._most:
                self._size -= len(self._answers.popleft())

    def corpus(self) -> list[int]:
        """All of them, the last one at the end, with what is no token between."""
        with self._lock:
            answers = list(self._answers)
        return [token for answer in answers for token in (*answer.tolist(), _SEPARATOR)]
