"""One token of the logits that a Llama's context has: ``Llama.sample``."""

from __future__ import annotations

from typing import Any

import llama_cpp

from specllama.engine.options import checked_index

from .arguments import sampling_of
from .mirostat import LlamaCppSampler
from .requests import constraint_of
from .view import EngineLlama


def sampled(llama: EngineLlama, arguments: dict[str, Any]) -> int:
    """A token, chosen by llama.cpp's own samplers. Call it while nobody else uses the Llama's slot.

    Args:
        llama: whose context has the logits.
        arguments: those of ``llama_cpp.Llama.sample``, by name.

    Raises:
        TypeError: an argument of another type.
        ValueError: there are no such logits, a number is out of range, or the grammar cannot be parsed.
    """
    sampling, row = sampling_of(arguments), _row(llama, arguments["idx"])
    constraint = constraint_of(arguments["grammar"])
    if constraint is not None:
        constraint.over(llama.engine.model)  # llama.cpp does not survive one that it cannot parse
    if not llama_cpp.llama_get_logits_ith(llama._ctx.ctx, row):
        raise ValueError(
            f"idx={arguments['idx']}: the context has no logits of this token. It keeps those of the last one that "
            "eval() was given: leave idx out"
        )
    sampler = LlamaCppSampler(llama, sampling, seeded=llama, logit_bias={}, grammar=arguments["grammar"])
    sampler.begin(list(arguments["logits_processor"] or []))
    return sampler.sample(row)


def _row(llama: EngineLlama, idx: Any) -> int:
    """Which logits, counted from behind."""
    count = llama.n_tokens
    if count < 1:
        raise ValueError("there are no logits to sample from: eval() tokens before")
    if idx is None:
        return -1
    if not 0 <= checked_index("idx", idx, "the place of a token, or None (the last)") < count:
        raise ValueError(f"idx={idx} is out of range: tokens 0 to {count - 1} are evaluated")
    return int(idx) - count
