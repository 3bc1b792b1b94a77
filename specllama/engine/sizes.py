"""Checks the sizes with which a model and its context are opened. llama.cpp would abort the process for bad sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import llama_cpp

from specllama.backend.brief import brief

from .limits import LARGEST_INT, MOST_THREADS
from .options import checked_index

_MOST_BATCH = 1 << 16  # the largest n_batch: llama_cpp allocates logits for each token of a batch
_OPTIONAL = ("n_threads", "n_threads_batch", "rope_scaling_type")
_ALSO_FLAGS = ("numa",)


def _numbers_of(enumeration: str) -> tuple[int, int]:
    """The smallest and the largest of llama.cpp's constants whose names begin with `enumeration`."""
    found = [value for name, value in vars(llama_cpp).items() if name.startswith(enumeration)]
    return min(found), max(found)


_RANGES = {
    "n_ctx": (0, LARGEST_INT),
    "n_batch": (1, _MOST_BATCH),
    "n_ubatch": (1, _MOST_BATCH),
    "n_threads": (0, MOST_THREADS),  # 0: llama_cpp's default
    "n_threads_batch": (0, MOST_THREADS),
    "last_n_tokens_size": (0, LARGEST_INT),
    "n_gpu_layers": (-LARGEST_INT, LARGEST_INT),  # less than 0: all layers
    "yarn_orig_ctx": (0, LARGEST_INT),
    "main_gpu": (0, LARGEST_INT),
    "attention_type": _numbers_of("LLAMA_ATTENTION_TYPE_"),
    "pooling_type": _numbers_of("LLAMA_POOLING_TYPE_"),
    "rope_scaling_type": _numbers_of("LLAMA_ROPE_SCALING_TYPE_"),
    "split_mode": _numbers_of("LLAMA_SPLIT_MODE_"),
    "numa": (0, 4),  # ggml's enum ggml_numa_strategy
}


def check_sizes(given: Mapping[str, Any]) -> None:
    """Check the arguments that are sizes or values of an enumeration.

    Raises:
        TypeError: an argument is no whole number.
        ValueError: an argument is out of range, and llama.cpp would abort the process.
    """
    for name, (least, most) in _RANGES.items():
        if name not in given or (given[name] is None and name in _OPTIONAL):
            continue
        if isinstance(given[name], bool) and name in _ALSO_FLAGS:
            continue
        value = checked_index(name, given[name], f"a whole number, from {least} to {most}")
        if not least <= value <= most:
            raise ValueError(f"{name}={brief(value)} is out of range: it must be from {least} to {most}")
