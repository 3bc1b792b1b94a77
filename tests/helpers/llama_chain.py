"""The probabilities that llama.cpp's own samplers leave, through libllama itself."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import llama_cpp
import numpy as np
import numpy.typing as npt
import reference as ref
from llama_cpp import _internals

Logits = npt.NDArray[np.float32]


def llama_cpp_probs(logits: Logits, chain: ref.Chain, recent: Sequence[int], **grammar: Any) -> ref.Array:
    """By the chain of llama_cpp.Llama, or that of llama-server where the other one lacks a sampler.

    With a grammar: `model` is the LlamaModel whose tokens it speaks of, and `grammar` the LlamaGrammar. XTC tosses a
    coin: the result is what comes out on average.
    """
    if 0 < chain.xtc_probability < 1:
        always, never = (dataclasses.replace(chain, xtc_probability=p) for p in (1.0, 0.0))
        share = chain.xtc_probability
        excluded = llama_cpp_probs(logits, always, recent, **grammar)
        return np.asarray(share * excluded + (1 - share) * llama_cpp_probs(logits, never, recent, **grammar))
    logits = logits.copy()
    for token, bias in chain.logit_bias.items():  # as Llama.create_completion's logits processor does
        logits[token] += np.float32(bias)
    is_more = chain.xtc_probability > 0 or chain.top_n_sigma > 0 or chain.dynatemp_range > 0
    make = llama_server_sampler if is_more and chain.temperature > 0 else llama_cpp_sampler
    sampler = make(chain, len(logits), **grammar)
    candidates, selected = applied(sampler, logits, recent)
    sampler.close()
    probs = np.zeros(len(logits))
    if chain.temperature == 0:
        probs[selected] = 1.0
    else:
        probs[candidates["id"]] = candidates["p"]
    return probs


def llama_cpp_sampler(chain: ref.Chain, n_vocab: int, **grammar: Any) -> _internals.LlamaSampler:
    """The one of llama_cpp.Llama."""
    host = SimpleNamespace(
        _n_vocab=n_vocab, last_n_tokens_size=chain.penalty_last_n, _seed=1, _model=grammar.get("model")
    )
    return llama_cpp.Llama._init_sampler(  # type: ignore[no-any-return]
        cast(llama_cpp.Llama, host),
        temp=chain.temperature,
        top_k=chain.top_k,
        top_p=chain.top_p,
        min_p=chain.min_p,
        typical_p=chain.typical_p,
        repeat_penalty=chain.repeat_penalty,
        frequency_penalty=chain.frequency_penalty,
        presence_penalty=chain.presence_penalty,
        grammar=grammar.get("grammar"),
    )


def llama_server_sampler(chain: ref.Chain, n_vocab: int, **grammar: Any) -> _internals.LlamaSampler:
    """The default order of llama.cpp's common_sampler_init. XTC: always or never."""
    sampler = _internals.LlamaSampler()
    sampler.add_penalties(
        n_vocab=n_vocab,
        penalty_last_n=chain.penalty_last_n,
        penalty_repeat=chain.repeat_penalty,
        penalty_freq=chain.frequency_penalty,
        penalty_present=chain.presence_penalty,
    )
    if "grammar" in grammar:
        sampler.add_grammar(grammar["model"], grammar["grammar"])
    sampler.add_top_n_sigma(chain.top_n_sigma)
    sampler.add_top_k(chain.top_k)
    sampler.add_typical(chain.typical_p, 1)
    sampler.add_top_p(chain.top_p, 1)
    sampler.add_min_p(chain.min_p, 1)
    sampler.add_xtc(chain.xtc_probability, chain.xtc_threshold, 1, 1)
    sampler.add_temp_ext(chain.temperature, chain.dynatemp_range, chain.dynatemp_exponent)
    sampler.add_dist(1)
    return sampler


def applied(sampler: Any, logits: Logits, recent: Sequence[int]) -> tuple[npt.NDArray[Any], int]:
    """The candidates that a sampler leaves behind some tokens, and the id that it has selected."""
    for token in recent:
        llama_cpp.llama_sampler_accept(sampler.sampler, token)
    candidates = np.zeros(len(logits), dtype=[("id", np.int32), ("logit", np.float32), ("p", np.float32)])
    candidates["id"] = np.arange(len(logits))
    candidates["logit"] = logits
    first = ctypes.cast(candidates.ctypes.data, ctypes.POINTER(llama_cpp.llama_token_data))
    array = llama_cpp.llama_token_data_array(data=first, size=len(logits), selected=-1, sorted=False)
    llama_cpp.llama_sampler_apply(sampler.sampler, ctypes.byref(array))
    # XTC moves the beginning of the array.
    start = (ctypes.addressof(array.data.contents) - candidates.ctypes.data) // candidates.itemsize
    kept = candidates[start : start + array.size]
    return kept, int(kept["id"][array.selected])
