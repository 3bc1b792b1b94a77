"""What drafts for a target, whatever it is."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from specllama import _core
from specllama.backend.base_class import BaseLlama

LOOKUP = "lookup"
GRAMMAR = "grammar"
TEXT_DRAFTERS = tuple(drafter.name for drafter in _core.drafters() if drafter.needs == "text")
"""Those that may be given as ``draft_model`` by their name."""


class Draft(abc.ABC):
    """A drafter in the service of one target.

    Attributes:
        given: what the user sees as ``llm.draft_model``.
        unusable: why it cannot draft; None if it can.
    """

    def __init__(self, given: Any) -> None:
        self.given = given
        self.unusable: str | None = None

    sequence: _core.Sequence | None = None
    """Of a draft that decodes: its own."""
    models: Mapping[str, BaseLlama] = MappingProxyType({})
    """What it decodes with, by the names that messages, costs and reports have for them."""

    @property
    def label(self) -> str:
        """What reports call it."""
        return str(self.given)

    def kept(self) -> contextlib.AbstractContextManager[None]:
        """Within the block the weights of its models stay, even if their owner closes them.

        Raises:
            ClosedError: they are closed.
        """
        return contextlib.nullcontext()

    @abc.abstractmethod
    def engine(
        self, target: _core.Sequence, own: _core.Sequence | None = None, scheduler: _core.Scheduler | None = None
    ) -> _core.Speculator:
        """The native loop over the target and this draft.

        Args:
            target: its sequence.
            own: another sequence for a draft that decodes.
            scheduler: what decodes for several texts, where this is one of them.
        """

    @abc.abstractmethod
    def pickled(self) -> Any:
        """The ``draft_model`` of a copy of the target."""

    # A draft without a context of its own has nothing to do in what follows.

    def notice_closing(self) -> None:  # noqa: B027
        """Look whether its owner has closed it."""

    def claim(self) -> None:  # noqa: B027
        """Learn what its cache holds, if its owner has used it."""

    def forget(self) -> None:  # noqa: B027
        """Empty its cache, as far as the target uses it."""

    def close(self) -> None:  # noqa: B027
        """Free what the target has loaded."""
