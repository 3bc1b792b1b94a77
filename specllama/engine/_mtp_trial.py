"""A trial (see `backend.trial`): does this llama.cpp run the MTP layers in a model's file?

The trial is run as ``python -m specllama.engine._mtp_trial MODEL``. llama.cpp does not say for which architectures it
has a graph of MTP layers, and it aborts the process for the other architectures.
"""

from __future__ import annotations

import sys

from .drafts.mtp import MTP
from .engine import Engine

_PROMPT = [0, 1, 2]


def main(path: str) -> None:
    """Draft some tokens with the MTP layers of a model's file."""
    with Engine.open(path, MTP, n_ctx=64, n_batch=32, n_threads=1, kernels="off", num_draft_tokens=8) as engine:
        for _ in engine.generate(_PROMPT, max_tokens=8, temperature=0.0):
            pass


if __name__ == "__main__":
    main(*sys.argv[1:])
