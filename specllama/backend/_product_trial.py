"""A trial (see `trial`): are products right if their quantized weights lie in one of ggml's extra buffer types?

The trial is run as `python -m specllama.backend._product_trial LIBRARY BUFFER_TYPE`. It needs no model, and does not
import llama_cpp, which would take longer than the trial.
"""

from __future__ import annotations

import ctypes
import sys

from .ggml import CpuBackend
from .ggml_products import Products, difference, silence

# The types for which ggml's AMX code has products, with their numbers in ggml.h.
_TYPES = {"Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14}
_INPUTS, _OUTPUTS = 256, 64  # of the weights: multiples of 256 and 32, as AMX needs, and enough for two threads
_COLUMNS = (1, 7, 33)  # tokens in a batch: AMX has separate code for one token, and for tokens beyond whole tiles
# Products in the tried buffer type use two threads, because each thread configures AMX tiles of its own. Plain products
# use one thread, because on a busy machine threads wait long for each other.
# `_TOLERANCE`: the largest difference, relative to the mean size of a result. A right layout gives some thousandths, a
# wrong one 1.
_TOLERANCE = 0.1


def main(library: str, name: str) -> str:
    """Compare products. Returns why the buffer type must not be used; empty if it may."""
    loaded = ctypes.CDLL(library)
    cpu = CpuBackend(loaded)
    silence(cpu)
    types = cpu.extra_buffer_types()
    if name not in types:
        return f"ggml has no buffer type {name} here"
    products, num_taken = Products(cpu, _INPUTS, _OUTPUTS, max(_COLUMNS)), 0
    for kind, number in _TYPES.items():
        for columns in _COLUMNS:
            found = products.of(number, columns, types[name])
            if found is None:
                continue
            num_taken += 1
            plain = products.of(number, columns, None)
            assert plain is not None
            off = difference(plain, found)
            if not off <= _TOLERANCE:
                return f"products of {kind} weights and {columns} columns are off by {off:.3g} of their size"
    return "" if num_taken else f"the buffer type {name} takes none of {', '.join(_TYPES)}"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) or None)
