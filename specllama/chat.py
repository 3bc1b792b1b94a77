"""A user's message in the form in which a model was trained to read it, as tokens."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NoReturn

from llama_cpp import llama_chat_format

from .prompt import prompt_tokens_of

if TYPE_CHECKING:
    from .llama import Llama


@dataclasses.dataclass(frozen=True)
class RenderedPrompt:
    """A prompt ready for ``create_completion``."""

    tokens: list[int]
    stop: list[str]
    """Texts that end an answer in this chat format, beside the model's own end-of-generation tokens."""


def render_chat(llm: Llama, message: str) -> RenderedPrompt:
    """What ``llm.create_chat_completion`` would decode for one message of a user.

    Args:
        llm: gives the chat handler or template, and the tokenizer.
        message: the user's message.

    Raises:
        ValueError: the chat handler makes no prompt of tokens.
    """
    handler = (
        llm.chat_handler
        or llm._chat_handlers.get(llm.chat_format or "")
        or llama_chat_format.get_chat_completion_handler(llm.chat_format or "")
    )
    try:
        handler(llama=_Recorder(llm), messages=[{"role": "user", "content": message}])  # type: ignore[arg-type]
    except _Recorded as recorded:
        return recorded.prompt
    raise ValueError(f"the chat handler of {llm.model_path} asks for no completion: it cannot be rendered as a prompt")


def render_text(llm: Llama, text: str) -> RenderedPrompt:
    """What ``llm.create_completion`` would decode for a text: with BOS if the model wants one."""
    return RenderedPrompt(prompt_tokens_of(llm, text, None), [])


class _Recorded(Exception):  # noqa: N818  # no error: it carries the prompt out of the handler
    def __init__(self, prompt: RenderedPrompt) -> None:
        self.prompt = prompt


class _Recorder:
    """Stands for the Llama in its chat handler, up to the call of create_completion."""

    def __init__(self, llm: Llama) -> None:
        self._llm = llm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    def create_completion(self, prompt: list[int], **kwargs: Any) -> NoReturn:
        stop = kwargs.get("stop") or []
        raise _Recorded(RenderedPrompt(list(prompt), [stop] if isinstance(stop, str) else list(stop)))
