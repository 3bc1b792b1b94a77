"""``Llama.sample``: one token, from the logits in a Llama's context."""

from __future__ import annotations

from typing import Any

import llama_cpp

from specllama.engine.options import checked_index

from .arguments import sampling_of
from .mirostat import LlamaCppSampler
from .requests import constraint_of
from .view import EngineLlama


def sampled(llama: EngineLlama, arguments: dict[str, Any]) -> int:
    """A token chosen by llama.cpp's own samplers. The caller must be the only user of the Llama's slot.

    Args:
        llama: the Llama whose context has the logits.
        arguments: the arguments of ``llama_cpp.Llama.sample``, by name.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: the context has no logits at ``idx``, a number is out of range, or the grammar cannot be parsed.
        RuntimeError: no token is allowed.
    """
    sampling, row = sampling_of(arguments), _row(llama, arguments["idx"])
    constraint = constraint_of(arguments["grammar"])
    if not llama_cpp.llama_get_logits_ith(llama._ctx.ctx, row):
        raise ValueError(
            f"idx={arguments['idx']}: the context has no logits of this token. It keeps those of the last one that "
            "eval() was given: leave idx out"
        )
    sampler = LlamaCppSampler(llama, sampling, seeded=llama, logit_bias={}, constraint=constraint)
    sampler.begin(list(arguments["logits_processor"] or []))
    return sampler.sample(row)


def _row(llama: EngineLlama, idx: Any) -> int:
    """The row of the logits, counted from the end: -1 is the last.

    Raises:
        ValueError: no token was evaluated, or there is no token with this index.
    """
    count = llama.n_tokens
    if count < 1:
        raise ValueError("there are no logits to sample from: eval() tokens before")
    if idx is None:
        return -1
    if not 0 <= checked_index("idx", idx, "the place of a token, or None (the last)") < count:
        raise ValueError(f"idx={idx} is out of range: tokens 0 to {count - 1} are evaluated")
    return int(idx) - count
