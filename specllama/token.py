"""One generated token, and what is known of it."""

from __future__ import annotations

import dataclasses
from typing import Literal

Origin = Literal["draft", "lookup", "correction", "bonus", "plain", "prompt"]
"""``draft``: drafted by a model, a head, a function, a grammar or lookahead, and accepted by the target. ``lookup``:
looked up in the text, and accepted. ``correction``: the target's own token after a rejection. ``bonus``: the target's
own token after a draft that was accepted as a whole. ``plain``: the target's own token in a round that drafted nothing.
``prompt``: a token of the prompt, with ``echo``."""


@dataclasses.dataclass(frozen=True)
class Token:
    """A token of ``Llama.generate_tokens``."""

    id: int
    """The token's id in the target's vocabulary."""
    text: str
    """The text that the token adds. It is empty for a special token, and as long as a character or a possible stop
    string is incomplete."""
    origin: Origin
    """Where the token came from."""
    logprob: float | None = None
    """Its natural log-probability under the target's raw distribution, before the sampler chain. None unless
    ``logprobs`` was given."""
    acceptance_probability: float | None = None
    """min(1, p/q): the probability that rejection sampling accepts the token (Leviathan et al. 2022), whichever rule
    decided. p is the target's probability of it after the sampler chain. q is the probability with which it was drafted
    (1 for a lookup). None for a token that was not drafted."""
