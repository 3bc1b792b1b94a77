"""How the prompt of a chat is made: which handler renders it, with what, and how its text becomes tokens."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from llama_cpp.llama_chat_format import chat_formatter_to_chat_completion_handler

from specllama.drop_in.base_class import BaseLlama
from specllama.drop_in.images import decodes_by_itself, handler_for_text
from specllama.drop_in.text import has_own_tokenizer

from .accepted_form import accepted, render
from .continued import Continued
from .formats.kinds import taught_by
from .messages import formatter_for, formatter_of, handler_for, has_own_handler, prompt_around, template_of
from .special_names import SpecialNames, is_marked
from .template_fields import read_fields


@dataclasses.dataclass(frozen=True)
class ChatPrompt:
    """Makes the prompt of one chat.

    Attributes:
        handler: llama_cpp's chat handler, or the user's.
        names: the names of special tokens that are text in messages; None if they are read as tokens.
        continued: the message that the answer continues; None if there is none.
    """

    handler: Callable[..., Any]
    names: SpecialNames | None = None
    continued: Continued | None = None

    def text(self, rendered: bytes) -> bytes:
        """The text of the prompt, with marks."""
        return rendered if self.continued is None else self.continued.behind(rendered)

    def tokens(self, llama: BaseLlama, rendered: bytes, add_bos: bool, special: bool) -> list[int]:
        """The tokens of what the handler has rendered, and of the message that is continued."""
        text = self.text(rendered)
        if self.names is None or not is_marked(written := text.decode("utf-8", "surrogateescape")):
            tokens: list[int] = llama.tokenize(text, add_bos, special)
            return tokens
        return self.names.tokens(written, add_bos=add_bos)


def chat_prompt(
    llama: BaseLlama,
    chat: dict[str, Any],
    fields: Mapping[str, Any],
    continued: Continued | None = None,
    *,
    parse_special: bool = False,
) -> tuple[dict[str, Any], ChatPrompt]:
    """How the prompt of a chat is made.

    Args:
        llama: the Llama that answers.
        chat: the checked arguments of the chat.
        fields: the template's fields (`given_fields`).
        continued: the message that the answer continues.
        parse_special: names of special tokens in messages, tools and fields are read as these tokens.

    Returns:
        The arguments for the chat handler, and the prompt. Handlers that tokenize by themselves get other messages.
    """
    for_text = None if decodes_by_itself(llama, chat["messages"]) else handler_for_text(llama)
    handler, read = for_text or handler_for(llama), read_fields(llama, fields)
    if has_own_handler(llama):
        return chat, ChatPrompt(functools.partial(handler, **read) if read else handler)
    formatter = formatter_of(handler)
    names = None
    if not parse_special:
        thoughts = taught_by(template_of(llama))[1] or ()
        marks = [piece for pieces in thoughts for piece in pieces]
        is_removed = formatter is not None and has_own_tokenizer(llama)
        names = SpecialNames(llama, prompt_around(llama), marks, is_removed=is_removed)
        continued = continued and continued.marked(names)
    if formatter is not None:
        ours = chat_formatter_to_chat_completion_handler(_Formatter(formatter, names, read))
        return chat, ChatPrompt(ours, names, continued)
    known = formatter_for(llama)
    if known is not None:
        chat = {**chat, "messages": list(accepted(known, chat["messages"], tools=chat.get("tools"), **read))}
    if names is not None:
        tools = {name: names.marked(chat[name]) for name in ("tools", "functions") if chat.get(name)}
        chat = {**chat, **tools, "messages": names.marked_messages(chat["messages"])}
        read = names.marked(read)
    return chat, ChatPrompt(functools.partial(handler, **read) if read else handler, None, continued)


class _Formatter:
    """One of llama_cpp's formatters, with the fields of a template. It renders what the template takes, with marks."""

    def __init__(self, formatter: Callable[..., Any], names: SpecialNames | None, fields: Mapping[str, Any]) -> None:
        self._formatter = formatter
        self._names = names
        self._fields = fields

    def __call__(self, *, messages: Any, **more: Any) -> Any:
        given = {**more, **self._fields}
        if self._names is not None:
            messages, given = self._names.marked_messages(messages), self._names.marked(given)
        return render(self._formatter, messages, **given)
