"""The largest values that a number may have."""

LARGEST_INT = 2**31 - 1  # of C
MOST_THREADS = 512  # ggml's GGML_MAX_N_THREADS
MOST_DRAFT_TOKENS = 512  # ours: no draft is accepted that far
