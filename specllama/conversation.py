"""A chat of several turns. Each turn decodes only the tokens that are new."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ._core import ContextFullError
from .backend.replacing import replacing
from .chat import Chat, ChatPrompt, Message, prepared

if TYPE_CHECKING:
    from .llama import Llama
    from .token import Token

_ROLES = ("system", "user", "assistant")


@dataclasses.dataclass(frozen=True)
class _State:
    """The messages so far, and their tokens. It is replaced as a whole, so that no interruption leaves half a turn."""

    messages: tuple[Message, ...] = ()
    prompt: str = ""
    """The text of the last prompt, which holds all earlier turns."""
    tokens: tuple[int, ...] = ()
    """The tokens of the last prompt and its answer; empty if the messages were changed, or the prompt is no text."""


class Conversation:
    """A chat with a model. It remembers all messages.

    Each turn continues the tokens that the model has read and written, so that the whole KV cache is used again. (If an
    answer were tokenized again, the tokens could differ.) But if the chat template rewrites earlier turns, for example
    drops an answer's reasoning, the model reads the rewritten turns.

    Args:
        llm: the model, with a draft or without. Other code may use it between turns.
        system: the system message, or None.
        options: arguments of ``create_chat_completion`` for each turn, such as ``max_tokens``, ``temperature``,
            ``seed`` or ``num_draft_tokens``. The attribute ``options`` holds them. It may be changed between turns.
    """

    def __init__(self, llm: Llama, system: str | None = None, **options: Any) -> None:
        self.llm = llm
        self.options = options
        self._state = _State()
        self.system = system
        self.is_thinking = False
        """Whether the last token belongs to the model's thoughts before its answer."""

    # The messages

    @property
    def messages(self) -> list[Message]:
        """All messages, the system's first, as ``create_chat_completion`` takes them.

        Messages with the roles system, user and assistant may be assigned. If they differ from the earlier messages,
        the model reads all of them in the next turn. Malformed messages raise a ValueError.
        """
        return [dict(message) for message in self._state.messages]

    @messages.setter
    def messages(self, messages: Sequence[Message]) -> None:
        checked = _checked(messages)
        if checked != self._state.messages:
            self._state = _State(checked)

    @property
    def num_turns(self) -> int:
        """How many messages of the user there are."""
        return sum(message["role"] == "user" for message in self._state.messages)

    @property
    def num_tokens(self) -> int:
        """How many tokens of the context are used; 0 before the first answer, and after the messages were changed."""
        return len(self._state.tokens)

    @property
    def is_full(self) -> bool:
        """Whether the context is full. The last answer may then be cut off, and no other message fits."""
        return self.num_tokens >= self.llm.n_ctx()

    @property
    def system(self) -> str | None:
        """The system message, or None. If it is assigned, the next turn reads all messages again."""
        messages = self._state.messages
        return messages[0]["content"] if messages and messages[0]["role"] == "system" else None

    @system.setter
    def system(self, text: str | None) -> None:
        system = () if text is None else ({"role": "system", "content": text},)
        self._state = _State((*system, *self._state.messages[self._num_system :]))

    def reset(self) -> None:
        """Forget all turns. The system message stays."""
        self._state = _State(self._state.messages[: self._num_system])

    def forget(self, num_turns: int = 1) -> None:
        """Forget the oldest turns, to make room. The next turn reads the others again.

        Raises:
            ValueError: the conversation has fewer turns.
        """
        messages = self._state.messages
        starts = [*(i for i, message in enumerate(messages) if message["role"] == "user"), len(messages)]
        if not 0 <= num_turns < len(starts):
            raise ValueError(f"cannot forget {num_turns} turns: the conversation has {len(starts) - 1}")
        if num_turns > 0:
            self._state = _State((*messages[: self._num_system], *messages[starts[num_turns] :]))

    @property
    def _num_system(self) -> int:
        return 0 if self.system is None else 1

    # A turn

    def say(self, message: str, **options: Any) -> Generator[Token, None, None]:
        """Send a message, and yield the tokens of the answer as they come.

        If the iterator is closed early, or an exception such as Ctrl-C ends it, the tokens yielded so far are the
        answer. If no token was yielded, the message is removed from the conversation.

        Args:
            message: the user's message.
            options: arguments of ``create_chat_completion`` for this turn.

        Raises:
            ContextFullError: the message does not fit into the context after the earlier turns, which stay as they are.
            ValueError: the chat template refuses the messages, for example a system message.
        """
        messages = (*self._state.messages, {"role": "user", "content": message})
        chat = prepared(self.llm, {**self.options, **options, "messages": list(messages)})
        prompt = self._prompt_of(chat.prompt)
        if len(prompt) >= self.llm.n_ctx():
            raise ContextFullError(
                f"the context is full: with this message the conversation has {len(prompt)} tokens, and n_ctx is "
                f"{self.llm.n_ctx()}; forget the oldest turns, begin anew, or create the Llama with a larger n_ctx (-c)"
            )
        return self._answer(messages, chat, prompt)

    def _answer(self, messages: tuple[Message, ...], chat: Chat, prompt: list[int]) -> Generator[Token, None, None]:
        answer: list[Token] = []
        ended = False
        thinking, written = chat.thinking(), chat.prompt.written
        tokens = cast("Generator[Token, None, None]", self.llm.generate_tokens(prompt, **chat.prompt.options))
        try:
            with contextlib.closing(tokens):
                for token in tokens:
                    answer.append(token)
                    self.is_thinking = thinking.add(token.text)
                    yield token
            ended = True
        finally:
            if answer or ended:
                text = "".join(token.text for token in answer)
                seen = (*prompt, *self._tokens_of(text, [token.id for token in answer], prompt, chat.prompt))
                messages = (*messages, {"role": "assistant", "content": text})
                self._state = _State(messages, written or "", () if written is None else seen)

    def _tokens_of(self, text: str, tokens: list[int], prompt: list[int], asked: ChatPrompt) -> list[int]:
        """The answer's tokens: the generated ones; if a stop string was cut off, the tokens of the shorter text."""
        written = self.llm.detokenize(tokens, prev_tokens=prompt).decode("utf-8", errors="ignore")
        named = self.llm.detokenize(tokens, special=True).decode("utf-8", errors="ignore")
        if written != text or named.endswith(tuple(asked.stop)):
            return asked.continuation(self.llm, text)
        return tokens

    def _prompt_of(self, asked: ChatPrompt) -> list[int]:
        """The tokens of a prompt: the tokens that the model has read and written, then those of the new text."""
        state = self._state
        if asked.written is None or not state.tokens:
            return asked.tokens
        news = _text_behind(asked.written, state.prompt, state.messages[-1]["content"])
        return asked.tokens if news is None else [*state.tokens, *asked.continuation(self.llm, news)]

    # Files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the messages to a JSON file: ``{"messages": [...]}``, as OpenAI's API takes them.

        Raises:
            OSError: the file cannot be written. A file that was there before stays as it was.
        """
        path = Path(path)
        text = json.dumps({"messages": self.messages}, ensure_ascii=False, indent=2)
        try:
            with replacing(path) as unfinished:
                unfinished.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise OSError(f"the conversation cannot be written to {path}: {error}; choose another place") from error

    def load(self, path: str | os.PathLike[str]) -> None:
        """Replace this conversation by one that ``save`` wrote into a file. The next turn reads all its messages.

        Raises:
            OSError: the file cannot be read.
            ValueError: the file holds no conversation. This conversation stays as it was.
        """
        try:
            found: Any = json.loads(Path(path).read_text(encoding="utf-8"))
            messages: Any = found.get("messages") if isinstance(found, dict) else found
            self.messages = messages
        except (ValueError, RecursionError) as error:  # RecursionError: brackets nested too deeply
            raise ValueError(f"{path} holds no conversation: {error}") from error


def _text_behind(text: str, prompt: str, answer: str) -> str | None:
    """The part of a text after a prompt and its answer; None if the text does not begin with both."""
    if not text.startswith(prompt):
        return None
    rest = text[len(prompt) :]
    for written in (answer, answer.rstrip()):
        if rest.startswith(written):
            return rest[len(written) :]
    # Some templates put spaces around an answer, or strip it. So the answer is compared without spaces at its ends.
    written = answer.strip()
    start = len(rest) - len(rest.lstrip())
    return rest[start + len(written) :] if rest.startswith(written, start) else None


def _checked(messages: Any) -> tuple[Message, ...]:
    if not isinstance(messages, (list, tuple)):
        raise ValueError(f"messages must be a list, not {type(messages).__name__}")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            raise ValueError(f"a message must have a role and a content that is a text: {message!r}")
        if message.get("role") not in _ROLES:
            raise ValueError(f"the role of a message must be one of {', '.join(_ROLES)}: {message!r}")
        message["content"].encode("utf-8")  # raises for a lone surrogate, which can be neither tokenized nor saved
    return tuple({"role": message["role"], "content": message["content"]} for message in messages)
