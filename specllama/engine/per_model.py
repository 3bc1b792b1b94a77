"""What is made once of a model and takes a while."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from specllama.backend.base_class import BaseLlama

Made = TypeVar("Made")


class PerModel(Generic[Made]):
    """Made when it is first asked for, and kept as long as the model is loaded.

    Places share the model of their Llama, and ask from threads of their own.

    Args:
        make: makes it from any Llama that has the model.
    """

    def __init__(self, make: Callable[[BaseLlama], Made]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: weakref.WeakKeyDictionary[Any, Made] = weakref.WeakKeyDictionary()

    def __call__(self, llama: BaseLlama) -> Made:
        """That of an open Llama's model."""
        with self._lock:
            made = self._made.get(llama._model)
            if made is None:
                made = self._made[llama._model] = self._make(llama)
            return made
