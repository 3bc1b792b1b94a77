"""Many texts of a Llama at once: threads that use the engine's slots, and the outcome of each text."""
