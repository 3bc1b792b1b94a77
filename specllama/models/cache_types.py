"""The number types that a KV cache may have."""

from __future__ import annotations

CACHE_TYPES = {
    "F32": (0, 1),
    "F16": (1, 1),
    "BF16": (30, 1),
    "Q4_0": (2, 32),
    "Q4_1": (3, 32),
    "IQ4_NL": (20, 32),
    "Q5_0": (6, 32),
    "Q5_1": (7, 32),
    "Q8_0": (8, 32),
}
"""For each name, ggml's number of the type and how many values are stored together in a block."""

_BLOCKS = dict(CACHE_TYPES.values())


def values_of_block(kind: int | None) -> int:
    """How many values a type stores together; 1 for None (the default), and for a type that no cache can have."""
    return 1 if kind is None else _BLOCKS.get(kind, 1)
