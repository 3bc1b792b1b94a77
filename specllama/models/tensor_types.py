"""The types that a tensor may have in a file, and how many bytes they take."""

from __future__ import annotations

import math
from collections.abc import Sequence

TYPES = {
    **{0: ("F32", 1, 4), 1: ("F16", 1, 2), 30: ("BF16", 1, 2), 28: ("F64", 1, 8)},
    **{24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8)},
    **{2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24)},
    **{8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36), 15: ("Q8_K", 256, 292)},
    **{10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176)},
    **{14: ("Q6_K", 256, 210), 20: ("IQ4_NL", 32, 18), 23: ("IQ4_XS", 256, 136)},
    **{16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 22: ("IQ2_S", 256, 82)},
    **{18: ("IQ3_XXS", 256, 98), 21: ("IQ3_S", 256, 110), 19: ("IQ1_S", 256, 50), 29: ("IQ1_M", 256, 56)},
    **{34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36)},
    **{41: ("Q1_0", 128, 18), 42: ("Q2_0", 64, 18)},
}
"""For each ggml_type its name, how many numbers are stored together in a block, and the bytes of a block."""


def bytes_of(kind: int, shape: Sequence[int]) -> int:
    """The number of bytes that a tensor takes.

    Args:
        kind: the ggml_type.
        shape: the sizes in ggml's order: the size of a row first.

    Raises:
        ValueError: the type is not one of `TYPES`, a size is 0, or a row is no whole number of blocks.
    """
    if kind not in TYPES:
        raise ValueError(f"of the type {kind}, which specllama does not know")
    name, block, size = TYPES[kind]
    if 0 in shape:
        raise ValueError(f"of the shape {list(shape)}, which holds nothing")
    if shape[0] % block:
        raise ValueError(f"of the type {name}, which has {block} numbers in a block, and rows of {shape[0]}")
    return math.prod(shape) // block * size
