"""Earlier answers, in which lookup searches. They are kept in memory only.

Lookup searches them as if they came before the present text. The idea comes from suffix decoding (arXiv 2411.04975).
"""

from __future__ import annotations

import collections
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from specllama.backend.brief import brief

from .options import checked_index

_SEPARATOR = -1  # follows each answer. It is no token, so no match reaches from one answer into the next


class EarlierAnswers:
    """The last answers of an engine. Any thread may call the methods.

    Args:
        most: how many tokens are kept; 0 keeps none.

    Raises:
        TypeError, ValueError: `most` is no int, or is below 0.
    """

    def __init__(self, most: Any = 0) -> None:
        self._most = checked_index("most", most, "an int: tokens of earlier answers that are kept; 0 keeps none")
        if self._most < 0:
            raise ValueError(
                f"most={brief(most)} is below 0: give tokens of earlier answers that are kept; 0 keeps none"
            )
        self._answers: collections.deque[npt.NDArray[np.int32]] = collections.deque()  # each with the separator
        self._size = 0
        self._lock = threading.Lock()

    def add(self, answer: npt.NDArray[np.integer[Any]]) -> None:
        """Keep the tokens [n] of an answer. The oldest answers are dropped to make room."""
        if self._most == 0 or len(answer) == 0:
            return
        kept = np.append(answer[-self._most :], _SEPARATOR).astype(np.int32)
        with self._lock:
            self._answers.append(kept)
            self._size += len(kept) - 1
            while self._size > self._most:
                self._size -= len(self._answers.popleft()) - 1

    def corpus(self) -> npt.NDArray[np.int32]:
        """The tokens [n] of all answers, the last one at the end. A number that is no token follows each answer."""
        with self._lock:
            answers = list(self._answers)
        return np.concatenate([np.empty(0, np.int32), *answers])
