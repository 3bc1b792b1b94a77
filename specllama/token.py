"""One generated token, and what is known of it."""

from __future__ import annotations

import dataclasses
from typing import Literal

Origin = Literal["draft", "lookup", "correction", "bonus", "plain", "prompt"]
"""``draft``: drafted by the draft model, by a function or to fill up a batch, and accepted by the target. ``lookup``:
looked up in the text, and accepted. ``correction``: the target's, after a rejection. ``bonus``: the target's, after a
draft accepted whole. ``plain``: the target's, in a round that drafted nothing. ``prompt``: of the prompt, with
``echo``."""


@dataclasses.dataclass(frozen=True)
class Token:
    """A token of ``Llama.generate_tokens``."""

    id: int
    """The token's id in the target's vocabulary."""
    text: str
    """What it adds to the text. Empty while a character of several tokens, or a stop string, is incomplete, and of a
    special token."""
    origin: Origin
    """Where it came from."""
    logprob: float | None = None
    """Its log-probability under the target's raw distribution, before the sampler chain, drafted or not. None unless
    ``logprobs`` was given."""
    acceptance_probability: float | None = None
    """min(1, p/q), with p the target's probability of the token after the sampler chain and q that with which it was
    drafted (1 for a lookup or a function): how likely rejection sampling accepts it, whichever rule decided. None for a
    token of the target's own."""
