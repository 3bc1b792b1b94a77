"""llama_cpp.Llama over an engine: arguments to requests, tokens to text, the engine's position to ``n_tokens``.

The only Python that knows the class ``llama_cpp.Llama``. What decodes, and what a text is, is not decided here.
"""
