"""The class that specllama.Llama extends: llama_cpp.Llama at the time when specllama was imported."""

from __future__ import annotations

import llama_cpp

BaseLlama = llama_cpp.Llama
"""The base class is fixed here, since an application may put specllama.Llama in the place of llama_cpp.Llama later."""
