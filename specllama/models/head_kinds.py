"""The names of kinds of heads. This module imports nothing: the command line needs it before anything is loaded."""

from __future__ import annotations

HEADS = (
    "mtp",
    "dflash",
    "dspark",
    "eagle3",
    "hydra",
    "medusa",
    "blockwise",
    "gemma4-assistant",
)
"""All kinds of heads. A head for a model's file NAME is a file KIND-NAME beside it.

llama.cpp looks for such files, too. The kinds that llama.cpp knows come first, in llama.cpp's order.
"""
OURS = "specllama-"
"""The beginning of the architecture's name in files of specllama's own format. The kind of head follows it."""
EAGLE3 = "eagle3"
ASSISTANT = "gemma4-assistant"
HYDRA = "hydra"
OF_THE_FINAL_STATE = ("medusa", HYDRA, "blockwise")
"""The kinds of heads that read only the target's final hidden state."""
SIBLING = "sibling"
"""A small model that learns to write as its target does. It is no head, but ``train-draft`` makes such models, too."""
PARALLEL = "pard"
"""A small model that learns to predict several tokens in one decode (PARD, arXiv 2504.18583)."""
MASK_TOKEN = "specllama.draft_mask_token"
"""The name of the metadata value that holds the mask token of a PARD model."""
OF_A_SMALL_MODEL = (SIBLING, PARALLEL)
"""The kinds of drafts that ``train-draft`` makes from a small model."""
TRAINED = (EAGLE3, *OF_THE_FINAL_STATE, *OF_A_SMALL_MODEL)
"""The kinds of drafts that ``specllama train-draft`` can make."""
