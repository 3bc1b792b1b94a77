"""The loop that is to be verified, token by token: raw, without stop strings or an end of the text."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specllama.backend.base_class import BaseLlama
from specllama.completions.llama_cpp_arguments import bound, sampling_of
from specllama.engine.generation import Generation
from specllama.engine.options import Options
from specllama.engine.request import Request

if TYPE_CHECKING:
    from specllama.llama import Llama
    from specllama.stats import Stats


def request_for(
    tokens: Sequence[int], sampling: dict[str, Any], *, rule: str, num_draft_tokens: int, seed: int
) -> Request:
    """What ``create_completion`` asks the loop for.

    Args:
        tokens: the prompt.
        sampling: options of ``create_completion`` for the sampler chain; the others have its defaults.
        rule: rejection, block or coupled.
        num_draft_tokens: gamma; 0 is plain decoding.
        seed: used as it is.
    """
    arguments = bound(BaseLlama._create_completion, (list(tokens),), sampling)
    return Request(
        tokens=tokens,
        options=Options.checked(num_draft_tokens, rule, max(1, num_draft_tokens)),
        seed=seed,
        seed_given=True,
        sampling=sampling_of(arguments),
        logit_bias={int(token): float(bias) for token, bias in (arguments["logit_bias"] or {}).items()},
    )


def take(llm: Llama, request: Request, count: int) -> tuple[list[int], Stats]:
    """The first `count` tokens of a generation, and its statistics.

    Rounds draft as many tokens as if the text went on.
    """
    generation = Generation(llm.session, request).run()
    try:
        tokens = list(itertools.islice(generation, count))
    finally:
        generation.close()
    return tokens, llm.stats


def has_penalties(request: Request) -> bool:
    """Whether the choice of a token depends on those generated before it in the same call."""
    neutral = {"repeat_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}
    return any(request.sampling[name] != value for name, value in neutral.items())
