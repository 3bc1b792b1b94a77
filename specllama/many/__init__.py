"""Many texts of a Llama at once: threads that fill the engine's slots, and what becomes of each text."""
