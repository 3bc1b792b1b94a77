"""Tiny heads that are right now and then: their output matrix is fitted to what their target says."""

from __future__ import annotations

import numpy as np
import tiny_models as tiny
from transcribed import encoded, forward, head_forward

_RIDGE = 1e-2


def fitted_head(
    vocabulary: tiny.Vocabulary, target: tiny.Weights, *, n_embd: int, seed: int = 5, first: int = 3
) -> tiny.Weights:
    """A head with random weights, but for its output matrix.

    Args:
        vocabulary: The target's.
        target: Weights of `tiny.llama_weights`, of four layers or more.
        n_embd: Width of the head.
        seed: The weights are a function of it.
        first: The matrix is fitted to texts of tokens from here on.
    """
    rng = np.random.default_rng(seed)
    n_target = target["token_embd.weight"].shape[1]
    head = tiny.head_weights(vocabulary, seed, n_target=n_target, n_embd=n_embd)
    states, wanted = [], []
    for _ in range(8):
        tokens = [1, *rng.integers(first, len(vocabulary), 48).tolist()]
        logits, entering = forward(target, tokens)
        own = head_forward(head, tokens[1:], encoded(head, entering, tiny.HEAD_LAYERS)[:-1])[1]
        states.append(own / np.sqrt((own**2).mean(-1, keepdims=True) + 1e-5))
        wanted.append(logits[1:])
    x, y = np.concatenate(states), np.concatenate(wanted)
    fitted = np.linalg.solve(x.T @ x + _RIDGE * len(x) * np.eye(n_embd), x.T @ y).T
    return {**head, "output.weight": fitted.astype(np.float32)}
