"""Model files: the catalog, downloads, other sizes, and what is looked at before llama.cpp opens one."""
