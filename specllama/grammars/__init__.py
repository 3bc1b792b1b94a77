"""Grammars and JSON schemas: what they may be, before llama.cpp sees them."""
