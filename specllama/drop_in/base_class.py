"""The class that specllama.Llama extends, as it was when specllama was imported."""

from __future__ import annotations

import os

import llama_cpp

BaseLlama = llama_cpp.Llama
"""Not looked up in llama_cpp again: an application may put specllama.Llama, or a class made of it, in its place."""


def file_of(llama: BaseLlama) -> str:
    """The name of its file, for messages: a server tells them, and where the file lies is nobody's business."""
    return os.path.basename(llama.model_path)
