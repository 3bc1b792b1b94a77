"""The names of kinds of heads. It imports nothing: the command line needs them before anything is loaded."""

from __future__ import annotations

HEADS = (
    "mtp",
    "dflash",
    "dspark",
    "eagle3",
    "hydra",
    "medusa",
    "blockwise",
)
"""All kinds of heads. A head for a model's file NAME is a file KIND-NAME beside it.

llama.cpp looks for such files, too. The kinds that it knows come first, in its order.
"""
OURS = "specllama-"
"""The beginning of the architectures of files whose form is our own. The kind follows."""
EAGLE3 = "eagle3"
HYDRA = "hydra"
OF_THE_FINAL_STATE = ("medusa", HYDRA, "blockwise")
"""The kinds that read only the target's final hidden state."""
SIBLING = "sibling"
"""A small model that learns to write as its target does. It is no head, but ``train-draft`` makes it, too."""
PARALLEL = "pard"
"""A small model that learns to say several tokens in one decode (PARD, arXiv 2504.18583)."""
MASK_TOKEN = "specllama.draft_mask_token"
"""The metadata with the mask token of such a model."""
OF_A_SMALL_MODEL = (SIBLING, PARALLEL)
"""The kinds that are made from a small model."""
TRAINED = (EAGLE3, *OF_THE_FINAL_STATE, *OF_A_SMALL_MODEL)
"""The kinds that ``specllama train-draft`` can make."""
