"""Messages in the form in which a model was trained to read them, as tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NoReturn

from specllama.backend.base_class import BaseLlama
from specllama.engine.prompt_tokens import prompt_tokens_of
from specllama.grammars.schemas import enforced, schemas_followed

Message = dict[str, str]
"""``{"role": "system" | "user" | "assistant", "content": ...}``."""


@dataclasses.dataclass(frozen=True)
class RenderedPrompt:
    """A prompt ready for ``create_completion``."""

    tokens: list[int]
    stop: list[str]
    """Texts that end an answer in this chat format, beside the model's own end-of-generation tokens."""


@dataclasses.dataclass(frozen=True)
class ChatCall:
    """The completion that ``create_chat_completion`` would ask for."""

    tokens: list[int]
    """The prompt."""
    text: str | None
    """The text of which these are the tokens; None if the chat handler did not make them of one text."""
    options: dict[str, Any]
    """All other arguments of ``create_completion``: the sampler chain, stop strings, ..."""


def chat_call(llm: BaseLlama, messages: Sequence[Message], **options: Any) -> ChatCall:
    """What ``llm.create_chat_completion`` would decode for some messages.

    Args:
        llm: gives the chat handler or template, and the tokenizer.
        messages: system message and turns; the last one is the user's.
        options: those of ``llama_cpp.Llama.create_chat_completion``.

    Raises:
        ValueError: the chat handler makes no prompt of tokens, or its template refuses the messages.
    """
    try:
        with schemas_followed(options):
            BaseLlama.create_chat_completion(_Recorder(llm), list(messages), **options)  # type: ignore[arg-type]
    except _Recorded as recorded:
        return recorded.call
    raise ValueError(f"the chat handler of {llm.model_path} asks for no completion: it cannot be rendered as a prompt")


def render_chat(llm: BaseLlama, message: str) -> RenderedPrompt:
    """What ``llm.create_chat_completion`` would decode for one message of a user.

    Raises:
        ValueError: the chat handler makes no prompt of tokens.
    """
    call = chat_call(llm, [{"role": "user", "content": message}])
    stop = call.options.get("stop") or []
    return RenderedPrompt(call.tokens, [stop] if isinstance(stop, str) else list(stop))


def render_text(llm: BaseLlama, text: str) -> RenderedPrompt:
    """What ``llm.create_completion`` would decode for a text: with BOS if the model wants one."""
    return RenderedPrompt(prompt_tokens_of(llm, text, None), [])


def continuation_tokens(llm: BaseLlama, text: str) -> list[int]:
    """The tokens of a text that goes on behind another, special tokens included.

    A SentencePiece tokenizer puts a space before a text; behind another text there is none.
    """
    mark = llm.tokenize(b"\n", add_bos=False, special=True)
    marked = llm.tokenize(b"\n" + text.encode("utf-8"), add_bos=False, special=True)
    if marked[: len(mark)] == mark:
        return marked[len(mark) :]
    return llm.tokenize(text.encode("utf-8"), add_bos=False, special=True)  # it merges with newlines: no SentencePiece


class _Recorded(Exception):  # noqa: N818  # no error: it carries the call out of the handler
    def __init__(self, call: ChatCall) -> None:
        self.call = call


class _Recorder:
    """Stands for the Llama in its chat handler, up to the call of create_completion."""

    def __init__(self, llm: BaseLlama) -> None:
        self._llm = llm
        self._text = ""
        self._tokens: list[int] | None = None  # of that text

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        self._text = text.decode("utf-8")
        self._tokens = self._llm.tokenize(text, add_bos, special)
        return self._tokens

    def create_completion(self, prompt: str | list[int], **options: Any) -> NoReturn:
        options["grammar"] = enforced(options.get("grammar"))
        tokens = prompt_tokens_of(self._llm, prompt, None)
        if isinstance(prompt, str):
            text: str | None = prompt
        else:
            text = self._text if tokens == self._tokens else None
        raise _Recorded(ChatCall(tokens, text, options))
