"""Chats: messages, tools and template fields in; tokens, options of the request and a reader of the answer out.

`prepared` makes a `Chat` of the arguments of ``create_chat_completion``. The chat template says with which forms of
messages and answers a model was trained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
_WHERE = {name: module for module, names in _EXPORTS.items() for name in names}


def __getattr__(name: str) -> Any:
    # Names are imported when they are first used: the check of a file of prompts needs no llama_cpp.
    from importlib import import_module

    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_WHERE[name]}", __name__), name)
