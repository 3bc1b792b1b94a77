"""Chats: messages, tools and template fields in; tokens, options of the request and a reader of the answer out.

`prepared` makes a `Chat` of the arguments of ``create_chat_completion``. From the chat template this package finds out
with which forms of messages and answers the model was trained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specllama.doors import opened

if TYPE_CHECKING:
    from .arguments import CHOICES, as_llama_cpp_has_it, check_request, require_known, with_parameters
    from .chats import Chat, Message, chat_prompt, prepared
    from .depth import raise_too_deep, require_few_levels
    from .prompt import ChatPrompt

__all__ = ["CHOICES", "Chat", "ChatPrompt", "as_llama_cpp_has_it", "chat_prompt", "check_request"]
__all__ += ["Message", "prepared", "raise_too_deep"]
__all__ += ["require_few_levels", "require_known", "with_parameters"]

_EXPORTS = {
    "arguments": ("CHOICES", "as_llama_cpp_has_it", "check_request", "require_known", "with_parameters"),
    "chats": ("Chat", "Message", "chat_prompt", "prepared"),
    "depth": ("raise_too_deep", "require_few_levels"),
    "prompt": ("ChatPrompt",),
}
__getattr__ = opened(__name__, _EXPORTS)
