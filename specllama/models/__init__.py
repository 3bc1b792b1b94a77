"""Model files: the catalog, downloads, other sizes, and the checks before llama.cpp opens a file."""
