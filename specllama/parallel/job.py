"""One text of many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from specllama.backend.base_class import BaseLlama


class Job(NamedTuple):
    """How a text is generated, and where.

    Attributes:
        run: generates it at a place.
        is_alone: it takes the Llama itself instead.
    """

    run: Callable[[BaseLlama], dict[str, Any]]
    is_alone: bool = False
