"""How tiny models are opened when texts must be equal whatever they were computed with."""

from __future__ import annotations

import llama_cpp

# A token is computed in a batch of another size (the pace decides, which measures time) and among other texts' cells.
# With a cache of F16 that moves a logit by up to 4e-4, and some texts have two tokens that are nearer to each other:
# text 56 of the soak is one text with `num_draft_tokens=0` and another one with 1 to 8. With F32 it is 6e-6.
EXACT_CACHE = {"type_k": llama_cpp.GGML_TYPE_F32, "type_v": llama_cpp.GGML_TYPE_F32}
