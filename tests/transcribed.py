"""Forward passes in NumPy, of the tiny models of `tiny_models`: what llama.cpp computes, by another hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import tiny_models as tiny

Array = np.ndarray[Any, np.dtype[np.float64]]

HEADS = 4


def forward(weights: tiny.Weights, tokens: Sequence[int]) -> tuple[Array, list[Array]]:
    """The logits behind each token of a model of `tiny.llama_weights`, and what enters each layer."""
    w = _doubles(weights)
    x = w["token_embd.weight"][np.asarray(tokens)]
    entering = []
    for i in range(sum(name.endswith("attn_norm.weight") for name in w)):
        entering.append(x)
        x = _layer(w, i, x, _normed(x, w[f"blk.{i}.attn_norm.weight"]))
    return _normed(x, w["output_norm.weight"]) @ w["output.weight"].T, entering


def encoded(weights: tiny.Weights, entering: Sequence[Array], layers: Sequence[int]) -> Array:
    """What a head of `tiny.head_weights` makes of the states that enter three layers of its target, token by token."""
    features = np.concatenate([entering[layer] for layer in layers], -1)
    rows: Array = features @ _doubles(weights)["fc.weight"].T
    return rows


def head_forward(weights: tiny.Weights, tokens: Sequence[int], states: Array) -> tuple[Array, Array]:
    """EAGLE-3 (arXiv 2503.01840, `cnets.py`): logits behind each token, each with the state of the token before it.

    Returns:
        The logits, and the head's own states: what the next drafted tokens get.
    """
    w = _doubles(weights)
    embedded = _normed(w["token_embd.weight"][np.asarray(tokens)], w["blk.0.attn_norm.weight"])
    both = np.concatenate([embedded, _normed(states, w["blk.0.attn_norm_2.weight"])], -1)
    own = _layer(w, 0, states, both)
    return _normed(own, w["output_norm.weight"]) @ w["output.weight"].T, own


def drafted_by_head(
    weights: tiny.Weights, target: tiny.Weights, text: Sequence[int], count: int, layers: Sequence[int]
) -> list[int]:
    """The best `count` tokens behind a text, of whose last token the target has no state yet."""
    _, entering = forward(target, text[:-1])
    tokens, states = list(text[1:]), encoded(weights, entering, layers)
    for _ in range(count):
        logits, own = head_forward(weights, tokens, states)
        tokens.append(int(logits[-1].argmax()))
        states = np.concatenate([states, own[-1:]])
    return tokens[len(text) - 1 :]


def _doubles(weights: tiny.Weights) -> dict[str, Array]:
    return {name: matrix.astype(np.float64) for name, matrix in weights.items()}


def _normed(x: Array, weight: Array) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * weight


def _layer(w: dict[str, Array], i: int, x: Array, y: Array) -> Array:
    """One layer: `x` is the residual stream, `y` what its attention reads."""
    size = x.shape[1] // HEADS
    angles = np.arange(len(x))[:, None] * 10000.0 ** (-np.arange(0, size, 2) / size)
    future = np.triu(np.full((len(x), len(x)), -np.inf), 1)

    def heads(matrix: Array, *, turned: bool) -> Array:
        """[head, token, size]."""
        found = (y @ matrix.T).reshape(len(y), -1, size).transpose(1, 0, 2)
        if turned:
            even, odd = found[..., ::2], found[..., 1::2]
            turns = (even * np.cos(angles) - odd * np.sin(angles), even * np.sin(angles) + odd * np.cos(angles))
            found = np.stack(turns, -1).reshape(found.shape)
        return found.repeat(HEADS // len(found), 0)

    q, k = (heads(w[f"blk.{i}.attn_{name}.weight"], turned=True) for name in "qk")
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(size) + future
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    seen = shares @ heads(w[f"blk.{i}.attn_v.weight"], turned=False)
    x = x + seen.transpose(1, 0, 2).reshape(x.shape) @ w[f"blk.{i}.attn_output.weight"].T
    y = _normed(x, w[f"blk.{i}.ffn_norm.weight"])
    gate = y @ w[f"blk.{i}.ffn_gate.weight"].T
    up = y @ w[f"blk.{i}.ffn_up.weight"].T
    done: Array = x + (gate / (1.0 + np.exp(-gate)) * up) @ w[f"blk.{i}.ffn_down.weight"].T
    return done
