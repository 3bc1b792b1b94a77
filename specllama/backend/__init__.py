"""The backend: libllama, ggml, the processor, and decisions about them before the first model is loaded."""
