"""The names of kinds of heads. It imports nothing: the command line needs them before anything is loaded."""

from __future__ import annotations

OF_THE_FINAL_STATE = ("medusa", "hydra", "blockwise")
"""The kinds that read only the target's final hidden state."""
SIBLING = "sibling"
"""A small model that learns to write as its target does. It is no head, but ``train-draft`` makes it, too."""
TRAINED = ("eagle3", *OF_THE_FINAL_STATE, SIBLING)
"""The kinds that ``specllama train-draft`` can make. The first one is the default."""
