"""Embeddings of texts, for ``llama_cpp.Llama.embed``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import llama_cpp
import numpy as np
from llama_cpp import _internals

from .tokenizing import Tokenizing


def as_inputs(given: Any) -> tuple[list[Any], bool]:
    """The inputs as a list.

    Args:
        given: a text, the token ids of one text, or an iterable of these. Ids may be NumPy's.

    Returns:
        The list, and whether `given` was a single text.

    Raises:
        TypeError: `given` is none of these.
    """
    inputs = _plain(given)
    if isinstance(inputs, str) or _is_tokens(inputs):
        return [inputs], True
    if isinstance(inputs, Iterable) and not isinstance(inputs, (bytes, bytearray, Mapping)):
        inputs = [_plain(one) for one in inputs]
        if all(isinstance(one, str) or one == [] or _is_tokens(one) for one in inputs):
            return inputs, False
    raise TypeError(
        f"input={given!r:.100} must be a text or a list of texts (or the token ids of a text, or a list of such)"
    )


def _plain(given: Any) -> Any:
    """`given` without NumPy's types, because an array cannot be compared with an empty list."""
    if isinstance(given, (list, tuple)):
        return [one.item() if isinstance(one, np.generic) else one for one in given]
    return given.tolist() if isinstance(given, (np.ndarray, np.generic)) else given


def _is_tokens(given: Any) -> bool:
    return isinstance(given, list) and bool(given) and all(type(token) is int for token in given)


def batches(llama: Tokenizing, inputs: Sequence[Any], truncate: bool) -> Iterator[list[list[int]]]:
    """The inputs as tokens, in groups that fit into one batch each.

    Args:
        llama: the Llama that tokenizes.
        inputs: texts, or lists of token ids.
        truncate: whether an input that is too long is cut at ``n_batch`` tokens.

    Yields:
        The tokens of the next inputs.

    Raises:
        ValueError: an input has no tokens, or is too long and may not be cut.
    """
    batch: list[list[int]] = []
    for index, given in enumerate(inputs):
        tokens = llama.tokenize(given.encode("utf-8")) if isinstance(given, str) else llama.known_tokens(given)
        if not tokens:
            raise ValueError(f"input {index} ({given!r:.60}) has no tokens, and so no embedding: leave it out")
        if len(tokens) > llama.n_batch and not truncate:
            is_most = llama.n_batch >= llama_cpp.llama_model_n_ctx_train(llama._model.model)
            raise ValueError(
                f"input {index} has {len(tokens)} tokens, and at most n_batch={llama.n_batch} are embedded at once: "
                f"shorten it (or in Python: truncate it{'' if is_most else ', or take a larger n_batch and n_ctx'})"
            )
        tokens = tokens[: llama.n_batch]
        full = sum(map(len, batch)) + len(tokens) > llama.n_batch or len(batch) >= llama.context_params.n_seq_max
        if batch and full:
            yield batch
            batch = []
        batch.append(tokens)
    if batch:
        yield batch


def embeddings(llama: Tokenizing, batch: Sequence[list[int]], normalize: bool) -> list[Any]:
    """The embeddings of one batch.

    Args:
        llama: the Llama that embeds.
        batch: the tokens of each input.
        normalize: whether to scale each vector to length 1. Scores of a model that ranks are never scaled.

    Returns:
        For each input a vector [n_embd], or without pooling a list of one vector for each token. A model that ranks
        (pooling type RANK) gives a list of scores instead.

    Raises:
        RuntimeError: llama.cpp cannot decode the batch, or gives no embeddings, or none of finite numbers.
    """
    pooling = llama_cpp.llama_pooling_type(llama.ctx)
    held: Any = llama._batch
    context: Any = llama._ctx
    held.reset()
    for number, tokens in enumerate(batch):
        held.add_sequence(tokens, number, True)
    try:
        context.kv_cache_clear()
        context.decode(held)
    finally:
        held.reset()
    if pooling != llama_cpp.LLAMA_POOLING_TYPE_NONE:
        ranks = pooling == llama_cpp.LLAMA_POOLING_TYPE_RANK
        size = _num_scores(llama) if ranks else llama.n_embd()
        return [
            _vector(llama_cpp.llama_get_embeddings_seq(llama.ctx, number), 0, size, normalize and not ranks)
            for number in range(len(batch))
        ]
    rows, found, size = llama_cpp.llama_get_embeddings(llama.ctx), [], llama.n_embd()
    first = 0
    for tokens in batch:
        found.append([_vector(rows, first + place, size, normalize) for place in range(len(tokens))])
        first += len(tokens)
    return found


def _num_scores(llama: Tokenizing) -> int:
    """How many scores a model that ranks gives for each input."""
    count = getattr(llama_cpp, "llama_model_n_cls_out", None)
    return 1 if count is None else max(1, int(count(llama._model.model)))


def _vector(rows: Any, row: int, size: int, normalize: bool) -> list[float]:
    if not rows:
        raise RuntimeError("llama.cpp gave no embedding: this model makes none with this pooling_type")
    found: list[float] = rows[row * size : (row + 1) * size]
    if not all(map(math.isfinite, found)):
        raise RuntimeError(
            "the model computes NaN or infinity, and so no embedding: try n_gpu_layers=0; a model that fails with it, "
            "too, is damaged"
        )
    return list(cast(Any, _internals).normalize_embedding(found)) if normalize else found
