"""Many texts at once: places for them, and the calls that fill these."""
