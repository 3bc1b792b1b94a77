"""The loop that is to be verified, token by token: raw, without stop strings or an end of the text."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specllama.engine import Request

if TYPE_CHECKING:
    from specllama import Llama, Stats

PENALTIES = {"repeat_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}
"""With the values that leave all tokens as they are."""


class Loop:
    """Generates as ``create_completion`` does.

    Args:
        llm: target with its draft.
        sampling: options of ``create_completion`` for the sampler chain; the others have its defaults.
        num_draft_tokens: gamma of every round.
    """

    def __init__(self, llm: Llama, sampling: dict[str, Any], num_draft_tokens: int) -> None:
        self.llm = llm
        self.sampling = sampling
        self.gamma = num_draft_tokens
        self.sampler = self.request([0], "block", 0)
        """What is asked for of any text: its chain makes probabilities of logits."""
        self.chain: dict[str, Any] = {**self.sampler.chain, "logit_bias": self.sampler.logit_bias}
        """The chain in full, llama_cpp's defaults among it."""
        self.has_penalties = any(self.chain[name] != value for name, value in PENALTIES.items())
        """Whether the choice of a token depends on those generated before it in the same call."""

    def request(self, tokens: Sequence[int], rule: str, seed: int) -> Request:
        """What the loop is asked for: rounds draft as many tokens as if the text went on, the first one, too.

        Args:
            tokens: the prompt.
            rule: rejection, block or coupled.
            seed: of the text.
        """
        return self.llm.engine.request(tokens, **self._asked(rule, seed))

    def take(self, tokens: Sequence[int], rule: str, seed: int, count: int) -> tuple[list[int], Stats]:
        """The first `count` tokens behind others, and their statistics."""
        with contextlib.closing(self.llm.engine.generate(tokens, **self._asked(rule, seed))) as generation:
            found = list(itertools.islice(generation, count))
        return found, self.llm.stats

    def _asked(self, rule: str, seed: int) -> dict[str, Any]:
        speculation = {"num_draft_tokens": self.gamma, "verify": rule, "drafts_first": True}
        return {**self.sampling, **speculation, "seed": seed, "penalty_last_n": self.llm.last_n_tokens_size}
