"""The class that specllama.Llama extends, as it was when specllama was imported."""

from __future__ import annotations

import llama_cpp

BaseLlama = llama_cpp.Llama
"""The base class is fixed here, since an application may put specllama.Llama in the place of llama_cpp.Llama later."""
