"""The drop-in: what makes an engine behave like ``llama_cpp.Llama``.

Arguments become requests, tokens become text, and the engine's position becomes ``n_tokens``. This is the only Python
that knows the class ``llama_cpp.Llama``. How texts are decoded is decided in `specllama.engine`.
"""
