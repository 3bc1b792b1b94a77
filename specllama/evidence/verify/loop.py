"""The loop that is to be verified, token by token: raw, without stop strings or an end of the text."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specllama.drop_in.arguments import bound, chain_of, sampling_of
from specllama.drop_in.base_class import BaseLlama
from specllama.engine.generation import Generation
from specllama.engine.options import Options
from specllama.engine.request import Request

if TYPE_CHECKING:
    from specllama.llama import Llama
    from specllama.stats import Stats

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
        request = self.request([0], "block", 0)
        self.params = request.sampler()
        """The chain, as the native code has it."""
        self.chain: dict[str, Any] = {**request.sampling, "logit_bias": request.logit_bias}
        """The same in full, llama_cpp's defaults among it."""
        self.has_penalties = any(self.chain[name] != value for name, value in PENALTIES.items())
        """Whether the choice of a token depends on those generated before it in the same call."""

    def request(self, tokens: Sequence[int], rule: str, seed: int) -> Request:
        """What the loop is asked for.

        Args:
            tokens: the prompt.
            rule: rejection, block or coupled.
            seed: used as it is.
        """
        arguments = bound(BaseLlama.create_completion, (list(tokens),), self.sampling)
        return Request(
            tokens=tokens,
            options=Options.checked(self.gamma, rule, self.gamma),
            seed=seed,
            seed_given=True,
            sampling={**chain_of(sampling_of(arguments)), "penalty_last_n": self.llm.last_n_tokens_size},
            logit_bias={int(token): float(bias) for token, bias in (arguments["logit_bias"] or {}).items()},
        )

    def take(self, tokens: Sequence[int], rule: str, seed: int, count: int) -> tuple[list[int], Stats]:
        """The first `count` tokens behind others, and their statistics.

        Rounds draft as many tokens as if the text went on, the first one, too.
        """
        request = dataclasses.replace(self.request(tokens, rule, seed), drafts_first=True)
        generation = Generation(self.llm.engine.own, request, keeper=self.llm)
        try:
            found = list(itertools.islice(generation, count))
        finally:
            generation.close()
        return found, self.llm.stats
