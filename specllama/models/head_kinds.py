"""Kinds of heads. It imports nothing: the command line asks for it before anything is loaded."""

from __future__ import annotations

OF_THE_FINAL_STATE = ("medusa", "hydra", "blockwise")
"""Those that read the target's final state alone."""
TRAINED = ("eagle3", *OF_THE_FINAL_STATE)
"""Those that ``specllama train-draft`` makes; the first where nobody says."""
