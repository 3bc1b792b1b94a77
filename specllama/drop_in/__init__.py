"""The drop-in: what makes an engine behave like ``llama_cpp.Llama``.

Arguments become requests, tokens become text, and the engine's position becomes ``n_tokens``. This folder and
`specllama.chat` are the only Python that knows the class ``llama_cpp.Llama``. `specllama.engine` decides how texts are
decoded.

A `Call` carries values for which llama_cpp's methods have no argument, such as the slot to use and a `Watch` to notify.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specllama.doors import opened

if TYPE_CHECKING:
    from .arguments import checked_stops, nearest
    from .embedding import as_inputs
    from .images import decodes_by_itself, give_image_handler, reads_images
    from .logprobs import bytes_named
    from .parts import TEXTS, text_of
    from .prediction import checked_prediction, is_looked_up, prediction_usage
    from .prompt_tokens import infill_tokens, leading_tokens, prompt_tokens_of
    from .requests import call_of
    from .seeds import seed_for_completion
    from .view import Call, call_on
    from .watch import Watch

__all__ = ["Call", "as_inputs", "bytes_named", "call_of", "call_on", "checked_prediction", "checked_stops"]
__all__ += ["decodes_by_itself", "give_image_handler", "infill_tokens", "is_looked_up", "leading_tokens"]
__all__ += ["nearest", "prediction_usage", "prompt_tokens_of", "reads_images", "seed_for_completion"]
__all__ += ["TEXTS", "Watch", "text_of"]

_EXPORTS = {
    "arguments": ("checked_stops", "nearest"),
    "embedding": ("as_inputs",),
    "images": ("decodes_by_itself", "give_image_handler", "reads_images"),
    "logprobs": ("bytes_named",),
    "parts": ("TEXTS", "text_of"),
    "prediction": ("checked_prediction", "is_looked_up", "prediction_usage"),
    "prompt_tokens": ("infill_tokens", "leading_tokens", "prompt_tokens_of"),
    "requests": ("call_of",),
    "seeds": ("seed_for_completion",),
    "view": ("Call", "call_on"),
    "watch": ("Watch",),
}
__getattr__ = opened(__name__, _EXPORTS)
