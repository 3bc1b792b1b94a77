"""The class that specllama.Llama extends, as it was when specllama was imported."""

from __future__ import annotations

import llama_cpp

BaseLlama = llama_cpp.Llama
"""Not looked up in llama_cpp again: an application may put specllama.Llama, or a class made of it, in its place."""
