"""The seeds of a Llama's calls."""

from __future__ import annotations

import random
import secrets

import llama_cpp

from specllama.engine.options import checked_seed

from .base_class import BaseLlama


def seed_for_generate(llama: BaseLlama) -> tuple[int, bool]:
    """The seed of a call of ``generate``, and whether the user chose it."""
    if llama._seed == llama_cpp.LLAMA_DEFAULT_SEED:
        return secrets.randbits(64), False
    return llama._seed, True


def seed_for_completion(llama: BaseLlama, seed: int | None) -> tuple[int, bool]:
    """The seed of a completion, and whether the user chose it.

    As in the base class, each call without a seed gets a new one: random, or derived from the Llama's own seed.

    Raises:
        TypeError, ValueError: `seed` is no seed.
    """
    seed = checked_seed(seed)
    if seed is not None:
        return seed, True
    if llama._seed == llama_cpp.LLAMA_DEFAULT_SEED:
        return secrets.randbits(64), False
    llama._seed = random.Random(llama._seed).randint(0, 2**32 - 2)
    return llama._seed, True
