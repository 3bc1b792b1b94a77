"""Grammars and JSON schemas: they are checked and converted here, before llama.cpp sees them."""
