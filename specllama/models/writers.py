"""Which models write text from left to right. All other models can be opened for embeddings only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NO_WRITERS = frozenset(
    {"bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3", "eurobert"}
    | {"gemma-embedding", "llama-embed", "t5", "t5encoder", "clip", "wavtokenizer-dec"}
    | {"dream", "llada", "llada-moe", "rnd1"}
)
"""Architectures that do not generate text from left to right."""
_CAUSAL, _NON_CAUSAL = 0, 1  # llama.cpp's enum llama_attention_type


def why_no_writer(metadata: Mapping[str, str], overrides: Mapping[str, Any] | None, attention_type: int) -> str | None:
    """Why a model cannot write text from left to right; None if it can.

    If tokens attend to later tokens, the text depends on which tokens share a batch, and therefore on the draft.

    Args:
        metadata: the file's metadata.
        overrides: the ``kv_overrides``.
        attention_type: the context's ``attention_type``.
    """
    architecture = metadata.get("general.architecture", "")
    if architecture in NO_WRITERS:
        return (
            f"{architecture!r} is the architecture of an embedding model, or of another one that does not write from "
            "left to right"
        )
    if attention_type == _NON_CAUSAL:
        return f"with attention_type={attention_type} each token attends to those behind it, too: leave it out"
    name = f"{architecture}.attention.causal"
    is_causal = (overrides or {}).get(name, metadata.get(name) != "false")
    if not is_causal and attention_type != _CAUSAL:
        return f"by its metadata ({name}) each token attends to those behind it, too"
    return None
