"""The backend: libllama, ggml, the processor, and what is decided about them before the first model is loaded."""
