"""One generated token, and where it came from."""

from __future__ import annotations

import dataclasses
from typing import Literal

Origin = Literal["draft", "correction", "bonus", "plain"]
"""``draft``: drafted, and accepted by the target. ``correction``: the target's, after a rejection. ``bonus``: the
target's, after a draft accepted whole. ``plain``: the target's, in a round that drafted nothing."""


@dataclasses.dataclass(frozen=True)
class Token:
    """A token of ``Llama.generate_tokens``."""

    id: int
    """The token's id in the target's vocabulary."""
    text: str
    """What it adds to the text. Empty while a character of several tokens, or a stop string, is incomplete."""
    origin: Origin
    """Where it came from."""
