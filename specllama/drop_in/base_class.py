"""The class that specllama.Llama extends: llama_cpp.Llama at the time when specllama was imported."""

from __future__ import annotations

import os

import llama_cpp

BaseLlama = llama_cpp.Llama
"""The base class is fixed here, since an application may put specllama.Llama in the place of llama_cpp.Llama later."""


def file_of(llama: BaseLlama) -> str:
    """The name of a model's file without its folder, for messages: a server's clients read them."""
    return os.path.basename(llama.model_path)
