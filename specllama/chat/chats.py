"""Chats as prompts: messages become tokens, in the form in which the model was trained to read them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast

from specllama.drop_in.base_class import BaseLlama, file_of
from specllama.drop_in.lending import lent
from specllama.drop_in.prompt_tokens import continuation_tokens, prompt_tokens_of
from specllama.drop_in.view import Call, EngineLlama, View
from specllama.grammars.schemas import schemas_by_grammar, warn_of_schemas, with_grammar_of_format

from .answers import ChatAnswer
from .arguments import checked_chat, left_out_by_handlers, with_left_out
from .continued import with_continued
from .forced_calls import with_forced_calls
from .messages import template_errors
from .prompt import ChatPrompt, chat_prompt
from .special_names import is_marked, without_marks
from .template_fields import given_fields, may_think

Message = dict[str, str]
"""``{"role": "system" | "user" | "assistant", "content": ...}``."""


@dataclasses.dataclass(frozen=True)
class RenderedPrompt:
    """A prompt for ``create_completion``."""

    tokens: list[int]
    stop: list[str]
    """The texts that end an answer in this chat format, besides the model's own end tokens."""


@dataclasses.dataclass(frozen=True)
class ChatCall:
    """The completion that ``create_chat_completion`` asks for."""

    tokens: list[int]
    """The prompt's tokens."""
    text: str | None
    """The prompt's text; None if the chat handler did not tokenize it as one text."""
    options: dict[str, Any]
    """All other arguments of ``create_completion``, such as the sampler's parameters and stop strings."""
    written: str | None = None
    """The prompt's text with marks in what is text and names special tokens (`special_names`)."""
    prompt: ChatPrompt | None = None
    """How the prompt was made."""

    def continuation(self, llm: BaseLlama, text: str) -> list[int]:
        """The tokens of the end of the prompt: of a part of ``written``, before which other tokens come."""
        names = None if self.prompt is None else self.prompt.names
        if names is None or not is_marked(text):
            return continuation_tokens(llm, text)
        return names.tokens(text, continues=True)


def chat_call(llm: BaseLlama, messages: Sequence[Message], **options: Any) -> ChatCall:
    """The completion that ``llm.create_chat_completion`` would ask for with these messages.

    Args:
        llm: the Llama. Its chat handler or template makes the prompt.
        messages: the system message and the turns; the last one is the user's.
        options: other arguments of ``create_chat_completion``.

    Raises:
        TypeError: an argument has the wrong type (`checked_chat`).
        ValueError: an argument has a wrong value (`checked_chat`), the template refuses the messages, or the chat
            handler makes no prompt of tokens.
    """
    fields = given_fields(options.pop("chat_template_kwargs", None), options.pop("reasoning_effort", None))
    is_continued = options.pop("continue_final_message", None)
    parse_special = bool(options.pop("parse_special", False))
    parallel = options.pop("parallel_tool_calls", None) is not False
    given, continued = with_continued(llm, {**options, "messages": list(messages)}, is_continued)
    chat = checked_chat(llm, given)
    schemas, of_format = schemas_by_grammar(chat), with_grammar_of_format(chat)
    warn_of_schemas(chat)
    chat, forced = with_forced_calls(llm, of_format, parallel=parallel)
    asked = left_out_by_handlers(llm, chat)
    llama = cast(EngineLlama, llm)
    chat, prompt = chat_prompt(llm, chat, fields, continued, parse_special=parse_special)
    call = dataclasses.replace(llama._call, prompt=prompt)
    noting = _Noting(llama, call, schemas, asked)
    try:
        with template_errors():
            BaseLlama.create_chat_completion(cast(BaseLlama, noting), **chat)
    except Exception:
        if noting.call is None:  # otherwise the handler has failed at the empty answer, which does not matter
            raise
    if noting.call is None:
        raise ValueError(
            f"the chat handler of {file_of(llm)} asks for no completion: it cannot be rendered as a prompt"
        )
    found = cast(ChatCall, noting.call)
    if found.options["grammar"] is not None:
        thinks = continued is None and may_think(fields)
        answer = ChatAnswer(llm, chat, forced, parallel=parallel, may_think=thinks)
        found.options["grammar"] = answer.begins_behind(lent(llm), found.tokens, found.options["grammar"])
    return found


def render_chat(llm: BaseLlama, message: str, before: Sequence[Mapping[str, Any]] = ()) -> RenderedPrompt:
    """The prompt that ``llm.create_chat_completion`` would decode for a message of a user.

    Args:
        llm: the model.
        message: the message.
        before: the messages before it.

    Raises:
        ValueError: the chat handler makes no prompt of tokens.
    """
    call = chat_call(llm, [*map(dict, before), {"role": "user", "content": message}])
    stop = call.options.get("stop") or []
    return RenderedPrompt(call.tokens, [stop] if isinstance(stop, str) else list(stop))


def render_text(llm: BaseLlama, text: str) -> RenderedPrompt:
    """The prompt that ``llm.create_completion`` would decode for a text, with BOS if the model wants it."""
    return RenderedPrompt(prompt_tokens_of(llm, text, None), [])


class _Noting(View):
    """A stand-in for the Llama of a chat handler.

    It notes the completion that the handler asks for, and returns no text.
    """

    __slots__ = ("_asked", "_schemas", "_text", "_tokens", "call")

    def __init__(self, llama: EngineLlama, call: Call, schemas: dict[str, Any], asked: dict[str, Any]) -> None:
        super().__init__(llama, call)
        self._set(_schemas=schemas, _asked=asked, _text="", _tokens=None, call=None)

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Tokenize, and note the text: it may be that of the prompt."""
        tokens = super().tokenize(text, add_bos, special)
        self._set(_text=self._call.prompt.text(text).decode("utf-8"), _tokens=tokens)
        return tokens

    def reset(self) -> None:
        """Refuse. A handler that resets the Llama decodes by itself.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            f"the chat handler of {file_of(self._llama)} decodes by itself, as those for images do: "
            "its prompt is no list of tokens; call create_chat_completion, whose usage says how many tokens it has"
        )

    def create_completion(self, prompt: str | list[int], **options: Any) -> Any:
        """Note the arguments, and return an empty answer.

        Raises:
            ValueError: this is the handler's second completion.
        """
        if self.call is not None:
            raise ValueError("the chat handler asks for a second completion, after the answer to the first")
        options = with_left_out(options, self._asked)
        grammar = options.get("grammar")
        options["grammar"] = self._schemas.get(getattr(grammar, "_grammar", ""), grammar)
        tokens = prompt_tokens_of(self._llama, prompt, None)
        if isinstance(prompt, str):
            written: str | None = prompt
        else:
            written = self._text if tokens == self._tokens else None
        text = None if written is None else without_marks(written)
        self._set(call=ChatCall(tokens, text, options, written, self._call.prompt))
        choice = {"text": "", "index": 0, "logprobs": None, "finish_reason": "stop"}
        answer = {"id": "", "object": "text_completion", "created": 0, "model": "", "choices": [choice]}
        usage = {"prompt_tokens": len(tokens), "completion_tokens": 0, "total_tokens": len(tokens)}
        return iter([answer]) if options.get("stream") else {**answer, "usage": usage}
