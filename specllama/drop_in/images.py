"""Chats with images: how to recognize them, and the handler that reads them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from llama_cpp import llama_chat_format

from specllama.models.gguf_header import read_header
from specllama.models.loading import captured_errors

from .base_class import BaseLlama
from .chat_templates import OF_FILE
from .lending import lent
from .parts import other_parts, text_of

_STACK = 2 << 20  # bytes of the stack that tokenizing a text may take; most threads have a stack of 8 MiB


def reads_images(llama: BaseLlama) -> bool:
    """Whether the Llama has one of llama_cpp's chat handlers for images."""
    return hasattr(llama.chat_handler, "clip_model_path")


def handler_for_text(llama: BaseLlama) -> Any:
    """The handler to use for chats without images, if llama_cpp's handler for images has the same chat template.

    The handler for images decodes every chat from its beginning, and no other text can be under way meanwhile.

    Returns:
        The handler of the file's chat template. None if the Llama reads no images, or reads them by another template.
    """
    if type(llama.chat_handler) is not getattr(llama_chat_format, "MTMDChatHandler", None):
        return None
    return llama._chat_handlers.get(OF_FILE)


def decodes_by_itself(llama: BaseLlama, messages: Any) -> bool:
    """Whether the chat handler decodes these messages in the Llama's own context, outside of the engine's slots."""
    if messages is None or llama.chat_handler is None:
        return False
    if any(True for _ in other_parts(messages)):
        return True
    return reads_images(llama) and handler_for_text(llama) is None


def require_room_for_words(llama: BaseLlama, messages: Any) -> None:
    """Check that the texts in messages can be tokenized by llama.cpp's library for images.

    That library uses the stack of the calling thread.

    Raises:
        ValueError: a text could overflow the stack.
    """
    tokenizer = lent(llama).tokenizer
    for text in _texts(messages):
        if tokenizer.stack_for(text.encode("utf-8", "replace")) > _STACK:
            raise ValueError(
                f"a message has {len(text)} characters with too few places where this model's tokenizer cuts them, "
                "such as spaces: in chats with images llama.cpp can read some thousand between two such places; "
                "shorten the message"
            )


def _texts(messages: Any) -> Iterator[str]:
    """The texts in messages. The messages may be malformed."""
    for message in messages if isinstance(messages, (list, tuple)) else ():
        content = message.get("content") if isinstance(message, Mapping) else None
        for part in content if isinstance(content, (list, tuple)) else (content,):
            text = part if isinstance(part, str) else text_of(part)
            if text is not None:
                yield text


def give_image_handler(llama: BaseLlama, path: str | os.PathLike[str]) -> None:
    """Let the chats of a Llama read images.

    Args:
        llama: the model.
        path: the file with the part of the model that reads images, usually ``mmproj-....gguf``.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, or not made for this model.
    """
    name = os.fspath(path)
    if (kind := read_header(name).architecture) != "clip":
        raise ValueError(f"{name} is a model of type {kind!r} and reads no images: give a mmproj file")
    # The newer class of handlers uses the model's own chat template.
    make: Any = getattr(llama_chat_format, "MTMDChatHandler", llama_chat_format.Llava15ChatHandler)
    handler = make(clip_model_path=name, verbose=False)
    try:
        with captured_errors() as errors:
            handler._init_mtmd_context(llama)  # loads the file now; else an error would come at the first chat
    except ValueError as error:
        why = " ".join((errors[0] if errors else str(error)).split())
        raise ValueError(
            f"{name} does not read images for {llama.model_path}: {why}; give the mmproj file of this model, complete"
        ) from None
    llama.chat_handler = handler
