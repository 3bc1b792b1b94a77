"""The loop that is verified, token by token, without stop strings and without an end of the text."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specllama.engine import Request

if TYPE_CHECKING:
    from specllama import Llama, Stats

PENALTIES = {"repeat_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}
"""The penalties, with the values that change nothing."""


def options_of(request: Request) -> dict[str, Any]:
    """The options of a request's sampler chain, but for DRY, with which a distribution depends on the prompt, too."""
    more = request.options.samplers.values
    return {**request.chain, **{name: value for name, value in more.items() if not name.startswith("dry_")}}


class Loop:
    """Generates tokens as ``create_completion`` does.

    Args:
        llm: a target with its draft.
        sampling: options of ``create_completion`` for the sampler chain; all others have their defaults.
        num_draft_tokens: gamma of every round.
    """

    def __init__(self, llm: Llama, sampling: dict[str, Any], num_draft_tokens: int) -> None:
        self.llm = llm
        self.sampling = sampling
        self.gamma = num_draft_tokens
        self.sampler = self.request([0], "block", 0)
        """A request whose sampler chain makes probabilities of logits, for any text."""
        self.chain: dict[str, Any] = {**options_of(self.sampler), "logit_bias": self.sampler.logit_bias}
        """All parameters of the chain, also llama_cpp's defaults."""
        self.has_penalties = any(self.chain[name] != value for name, value in PENALTIES.items())
        """Whether the choice of a token depends on tokens that were generated before it in the same call."""

    def request(self, tokens: Sequence[int], rule: str, seed: int) -> Request:
        """The request for the loop. All rounds, also the first, draft as many tokens as if the text went on.

        Args:
            tokens: the prompt.
            rule: rejection, block or coupled.
            seed: the seed of the text.
        """
        return self.llm.engine.request(tokens, **self._asked(rule, seed))

    def take(self, tokens: Sequence[int], rule: str, seed: int, count: int) -> tuple[list[int], Stats]:
        """The first `count` tokens after a prompt, and their statistics."""
        with contextlib.closing(self.llm.engine.generate(tokens, **self._asked(rule, seed))) as generation:
            found = list(itertools.islice(generation, count))
        return found, self.llm.stats

    def _asked(self, rule: str, seed: int) -> dict[str, Any]:
        speculation = {"num_draft_tokens": self.gamma, "verify": rule, "drafts_first": True}
        return {**self.sampling, **speculation, "seed": seed, "penalty_last_n": self.llm.last_n_tokens_size}
