"""A trial (see `trial`): do our kernels, in ggml's threads, update recurrent states as ggml itself does?

The trial is run as `python -m specllama.backend._state_trial LIBRARY INSTRUCTION_SET`.
"""

from __future__ import annotations

import ctypes
import sys

from specllama import _core

from .ggml import CpuBackend
from .ggml_products import difference, silence
from .ggml_states import Batch, States
from .kernels import offer_to

_BATCHES = (
    Batch(1, (0, 1), cells=2, slots=1),
    Batch(1, (1, 0), cells=2, slots=1),  # states that change their places
    Batch(1, (0, 2), cells=3, slots=1, moved=(1,)),
    Batch(20, (0,), cells=2, slots=1),
    Batch(2, (0, 1), cells=3, slots=3),
    Batch(5, (0, 1), cells=3, slots=3),
    Batch(1, (3, 7), cells=3, slots=3),  # after rollbacks of one token, and of two
    Batch(3, (3, 7), cells=3, slots=3),  # the same: new snapshots go where these states are read
    Batch(2, (4, 6), cells=3, slots=3),  # a text's snapshot would go where another's state is read
)
_SMALL = 1e-4  # the largest relative difference of results. A right layout gives a millionth, a wrong one 1


def main(library: str, instruction_set: str) -> str:
    """Compare our results with ggml's. Returns why the kernels must not be used; empty if they may."""
    cpu = CpuBackend(ctypes.CDLL(library))
    silence(cpu)
    try:
        states = States(cpu)
    except LookupError as error:
        return str(error)
    ours = offer_to(cpu, instruction_set, updates_states=True).address
    _core.KernelBufferType.take_weights(list(_core.quantized_types()))
    kind = _core.quantized_types()["Q4_K"].number
    for operation in ("GATED_DELTA_NET", "SSM_SCAN"):
        for batch in _BATCHES:
            plain, found = (states.updated(operation, kind, batch, where) for where in (None, ours))
            if plain is None or found is None:
                return f"{operation} is described otherwise"
            off = max(difference(one, other) for one, other in zip(plain, found, strict=True))
            if not off <= _SMALL:
                return f"{operation} of {batch} is off by {off:.3g} of its size"
    return ""


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) or None)
