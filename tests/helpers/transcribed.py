"""Forward passes in NumPy, of the tiny models of `tiny_models`: what llama.cpp computes, by another hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import tiny_models as tiny

Array = np.ndarray[Any, np.dtype[np.float64]]

HEADS = 4


def forward(weights: tiny.Weights, tokens: Sequence[int]) -> tuple[Array, list[Array]]:
    """The logits behind each token of a model of `tiny_models`, and what enters each layer and the output matrix."""
    w = _doubles(weights)
    x = w["token_embd.weight"][np.asarray(tokens)]
    states = []
    for i in range(_num_layers(w)):
        states.append(x)
        x = _layer(w, i, x, normed(x, w[f"blk.{i}.attn_norm.weight"]))
    states.append(normed(x, w["output_norm.weight"]))
    return states[-1] @ w["output.weight"].T, states


def _num_layers(w: Mapping[str, Array]) -> int:
    """Those for MTP come behind the others."""
    return sum(name.endswith("attn_norm.weight") for name in w) - sum(name.endswith("eh_proj.weight") for name in w)


class Eagle:
    """EAGLE-3 (arXiv 2503.01840, `cnets.py`): a head of `tiny.head_weights`.

    With `said` it says these tokens alone: row i of its output matrix is token i of them.
    """

    def __init__(self, weights: tiny.Weights, layers: Sequence[int], said: Sequence[int] | None = None) -> None:
        self._w = _doubles(weights)
        self._layers = layers
        self._said = said

    def read(self, states: list[Array]) -> Array:
        """What it makes of the target's states, token by token."""
        rows: Array = np.concatenate([states[layer] for layer in self._layers], -1) @ self._w["fc.weight"].T
        return rows

    def __call__(self, tokens: Sequence[int], states: Array) -> tuple[Array, Array, Array]:
        """Behind each token, which comes with the state of the token before it.

        Returns:
            The logits, what the output matrix multiplies, and the states: what the next drafted tokens get.
        """
        w = self._w
        embedded = normed(w["token_embd.weight"][np.asarray(tokens)], w["blk.0.attn_norm.weight"])
        both = np.concatenate([embedded, normed(states, w["blk.0.attn_norm_2.weight"])], -1)
        own = _layer(w, 0, states, both)
        multiplied = normed(own, w["output_norm.weight"])
        logits = multiplied @ w["output.weight"].T
        if self._said is not None:
            some, logits = logits, np.full((len(logits), len(w["token_embd.weight"])), -np.inf)
            logits[:, self._said] = some
        return logits, multiplied, own


class Mtp:
    """DeepSeek-V3 (arXiv 2412.19437, section 2.2), as hy_v3 does it: a layer of `tiny.mtp_weights` for MTP."""

    def __init__(self, weights: tiny.Weights, number: int = 0) -> None:
        self._w = _doubles(weights)
        self._layer = _num_layers(self._w) + number

    def read(self, states: list[Array]) -> Array:
        """It reads what the target's output matrix multiplies."""
        return states[-1]

    def __call__(self, tokens: Sequence[int], states: Array) -> tuple[Array, Array, Array]:
        """As of `Eagle`."""
        w, layer = self._w, f"blk.{self._layer}"
        embedded = normed(w["token_embd.weight"][np.asarray(tokens)], w[f"{layer}.nextn.enorm.weight"])
        both = np.concatenate([embedded, normed(states, w[f"{layer}.nextn.hnorm.weight"])], -1)
        x = both @ w[f"{layer}.nextn.eh_proj.weight"].T
        own = _layer(w, self._layer, x, normed(x, w[f"{layer}.attn_norm.weight"]))
        said = normed(own, w[f"{layer}.nextn.shared_head_norm.weight"])
        return said @ w[f"{layer}.nextn.shared_head_head.weight"].T, said, said


def drafted_by_heads(heads: Sequence[Eagle | Mtp], target: tiny.Weights, text: Sequence[int], count: int) -> list[int]:
    """The best `count` tokens behind a text, of whose last token the target has no state yet: one of each head."""
    tokens, states = list(text[1:]), heads[0].read(forward(target, text[:-1])[1])
    for head in heads[:count]:
        logits, _, own = head(tokens, states)
        tokens.append(int(logits[-1].argmax()))
        states = np.concatenate([states, own[-1:]])
    return tokens[len(text) - 1 :]


def _doubles(weights: tiny.Weights) -> dict[str, Array]:
    return {name: matrix.astype(np.float64) for name, matrix in weights.items()}


def normed(x: Array, weight: Array) -> Array:
    """RMS norm."""
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * weight


def turned_halves(x: Array, first: int) -> Array:
    """Queries or keys [head, token, size], turned by their positions, which begin with `first`."""
    num_tokens, size = x.shape[1:]
    angles = np.arange(first, first + num_tokens)[:, None] * 10000.0 ** (-np.arange(0, size, 2) / size)
    one, other = np.split(x, 2, -1)
    pair = (one * np.cos(angles) - other * np.sin(angles), one * np.sin(angles) + other * np.cos(angles))
    return np.concatenate(pair, -1)


def _layer(w: dict[str, Array], i: int, x: Array, y: Array) -> Array:
    """One layer: `x` is the residual stream, `y` what its attention reads."""
    size = x.shape[1] // HEADS
    angles = np.arange(len(x))[:, None] * 10000.0 ** (-np.arange(0, size, 2) / size)
    future = np.triu(np.full((len(x), len(x)), -np.inf), 1)

    def heads(matrix: Array) -> Array:
        """[head, token, size]."""
        found = (y @ matrix.T).reshape(len(y), -1, size).transpose(1, 0, 2)
        return found.repeat(HEADS // len(found), 0)

    def turned(name: str) -> Array:
        found = heads(w[f"blk.{i}.attn_{name}.weight"])
        norm = w.get(f"blk.{i}.attn_{name}_norm.weight")
        if norm is not None:  # such models turn halves, and others neighbours
            found = normed(found, norm)
            return turned_halves(found, 0)
        one, other = found[..., ::2], found[..., 1::2]
        pair = (one * np.cos(angles) - other * np.sin(angles), one * np.sin(angles) + other * np.cos(angles))
        return np.stack(pair, -1).reshape(found.shape)

    q, k = turned("q"), turned("k")
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(size) + future
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    seen = shares @ heads(w[f"blk.{i}.attn_v.weight"])
    x = x + seen.transpose(1, 0, 2).reshape(x.shape) @ w[f"blk.{i}.attn_output.weight"].T
    y = normed(x, w[f"blk.{i}.ffn_norm.weight"])
    gate = y @ w[f"blk.{i}.ffn_gate.weight"].T
    up = y @ w[f"blk.{i}.ffn_up.weight"].T
    done: Array = x + (gate / (1.0 + np.exp(-gate)) * up) @ w[f"blk.{i}.ffn_down.weight"].T
    return done
