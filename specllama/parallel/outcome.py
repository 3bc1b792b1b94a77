"""What became of one of many texts."""

from __future__ import annotations

import dataclasses
from typing import Any

from specllama.stats import Stats


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One text: a response, or the error that it got."""

    index: int
    """Which of the prompts it was."""
    response: dict[str, Any] | None
    """As ``create_completion`` or ``create_chat_completion`` returns it; None after an error."""
    error: Exception | None
    """None unless this text failed. The others do not notice."""
    stats: Stats
    """Statistics of this text alone. Of a batch of several texts each has an equal part of the time."""

    @property
    def text(self) -> str:
        """The answer.

        Raises:
            Exception: the error, if there is one.
        """
        if self.error is not None:
            raise self.error
        choice = (self.response or {})["choices"][0]
        return str(choice["message"]["content"] or "" if "message" in choice else choice["text"])
