"""What T(n) depends on, its files, and how an engine comes by what is known of it."""
