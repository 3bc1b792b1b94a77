"""Pairs of autoregressive models over a vocabulary of three tokens: small enough to enumerate everything."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import reference as ref

VOCAB = 3


def random_model(seed: int, sharpness: float = 1.5, zeros: float = 0.0) -> ref.Model:
    """An autoregressive model whose distributions depend on the whole context; some tokens get no mass at all."""

    @functools.cache
    def distribution(context: tuple[int, ...]) -> ref.Array:
        rng = np.random.default_rng([seed, *[token + 1 for token in context]])
        logits = sharpness * rng.standard_normal(VOCAB)
        dropped = rng.random(VOCAB) < zeros
        dropped[rng.integers(VOCAB)] = False
        return ref.softmax(np.where(dropped, -np.inf, logits))

    return distribution


def one_hot_model(seed: int) -> ref.Model:
    """A lookup drafter: certain of one token, which depends on the context."""

    def distribution(context: tuple[int, ...]) -> ref.Array:
        rng = np.random.default_rng([seed, *[token + 1 for token in context]])
        return np.eye(VOCAB)[rng.integers(VOCAB)]

    return distribution


def supported_on(model: ref.Model, tokens: Sequence[int]) -> ref.Model:
    """The model, with all mass outside `tokens` taken away."""
    mask = np.isin(np.arange(VOCAB), tokens)
    return lambda context: ref.norm(np.where(mask, model(context), 0.0))


PAIRS: dict[str, tuple[ref.Model, ref.Model]] = {
    "random": (random_model(1), random_model(2)),
    "close": (random_model(1), random_model(1, sharpness=1.2)),
    "identical": (random_model(1), random_model(1)),
    "one-hot draft": (random_model(1), one_hot_model(5)),
    "one-hot target": (one_hot_model(6), random_model(2)),
    "disjoint": (supported_on(random_model(1), [0, 1]), supported_on(random_model(2), [2])),
    "sparse": (random_model(3, zeros=0.4), random_model(4, zeros=0.4)),
    "draft misses tokens": (random_model(1), supported_on(random_model(2), [0, 1])),
    "target misses tokens": (supported_on(random_model(1), [1, 2]), random_model(2)),
}
