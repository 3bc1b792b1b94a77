"""Tiny heads that are right now and then: their output matrix is fitted to what their target says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tiny_models as tiny
from engine import Engine
from exact import EXACT_CACHE
from transcribed import Eagle, Mtp, forward

import specllama
from specllama import _core

_RIDGE = 1e-2
Matrix = np.ndarray[Any, np.dtype[np.float32]]


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
    head = tiny.head_weights(vocabulary, seed, n_target=target["token_embd.weight"].shape[1], n_embd=n_embd)
    output = _fitted(Eagle(head, tiny.HEAD_LAYERS), target, len(vocabulary), seed, first)
    return {**head, "output.weight": output}


def fitted_mtp(vocabulary: tiny.Vocabulary, seed: int, first: int = 259, count: int = 1) -> tiny.Weights:
    """A model with layers for MTP that have random weights, but for their output matrices."""
    model = tiny.mtp_weights(vocabulary, seed, count=count)
    fitted = {
        f"blk.{2 + i}.nextn.shared_head_head.weight": _fitted(Mtp(model, i), model, len(vocabulary), seed, first)
        for i in range(count)
    }
    return {**model, **fitted}


def _fitted(head: Eagle | Mtp, target: tiny.Weights, n_vocab: int, seed: int, first: int) -> Matrix:
    rng = np.random.default_rng(seed)
    multiplied, wanted = [], []
    for _ in range(8):
        tokens = [1, *rng.integers(first, n_vocab, 48).tolist()]
        logits, states = forward(target, tokens)
        multiplied.append(head(tokens[1:], head.read(states)[:-1])[1])
        wanted.append(logits[1:])
    x, y = np.concatenate(multiplied), np.concatenate(wanted)
    return np.linalg.solve(x.T @ x + _RIDGE * len(x) * np.eye(x.shape[1]), x.T @ y).T.astype(np.float32)


class Headed(Engine):
    """A loop whose head is alone: the drafter that is made of its sequence."""

    def __init__(self, target: Path, head: Path | str, drafter: Callable[[Any], _core.Drafter]) -> None:
        settings: dict[str, Any] = {"n_ctx": 512, "n_threads": 1, "n_threads_batch": 1, "verbose": False, **EXACT_CACHE}
        self.llm = specllama.Llama(str(target), draft_model=str(head), **settings)
        draft = self.llm.engine.draft
        assert draft is not None
        self.target, self.draft = self.llm.engine.model.sequence, draft.sequence if draft.models else None
        self.speculator = _core.Speculator(self.target, [drafter(self.draft)])
        self.rounds = []

    def close(self) -> None:
        """See the base class."""
        self.llm.close()
