"""A chat of several turns, of which each decodes only what is new."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ._core import ContextFullError
from .drop_in.arguments import checked_stops
from .drop_in.chats import ChatCall, Message, chat_call
from .drop_in.formats.thinking import Thinking
from .drop_in.messages import template_of
from .drop_in.prompt_tokens import continuation_tokens
from .engine.samplers import SAMPLERS

if TYPE_CHECKING:
    from .llama import Llama
    from .token import Token

_ROLES = ("system", "user", "assistant")
_OF_SPECLLAMA = ("num_draft_tokens", "verify", "min_tokens", *SAMPLERS)


@dataclasses.dataclass(frozen=True)
class _State:
    """What was said. Replaced as a whole, so that no interruption leaves half a turn."""

    messages: tuple[Message, ...] = ()
    prompt: str = ""
    """The text of the last prompt, which holds all earlier turns."""
    tokens: tuple[int, ...] = ()
    """What the model has read and written: the last prompt and its answer. Empty if the messages are not from here."""


class Conversation:
    """A chat with a model, which remembers what was said.

    Each turn continues the very tokens that the model has read and written, so that its whole KV cache is used again:
    an answer, tokenized once more, is often not the tokens that were generated. Only if the chat template rewrites
    earlier turns (some drop an answer's reasoning) are they what the template makes of them.

    Args:
        llm: the model, with a draft or without. Others may use it between turns.
        system: the system message, or None.
        options: those of ``create_chat_completion`` for each turn, such as ``max_tokens``, ``temperature``, ``seed`` or
            ``num_draft_tokens``. They stay in the attribute ``options``, to be changed between turns.
    """

    def __init__(self, llm: Llama, system: str | None = None, **options: Any) -> None:
        self.llm = llm
        self.options = options
        self._state = _State()
        self.system = system
        self.is_thinking = False
        """Whether the last token that was yielded is part of what the model thinks before it answers."""

    # What was said

    @property
    def messages(self) -> list[Message]:
        """All messages, the system's first, as ``create_chat_completion`` takes them.

        Others may be assigned, of the roles system, user and assistant. The next turn then reads them all, unless they
        are the same.
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
        """Tokens of the context in use; 0 before the first answer, and when what was said has been changed since."""
        return len(self._state.tokens)

    @property
    def is_full(self) -> bool:
        """Whether the context had no room to end the last answer, nor has any for another message."""
        return self.num_tokens >= self.llm.n_ctx()

    @property
    def system(self) -> str | None:
        """The system message, or None. Assigning another one has the next turn read everything again."""
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
            ValueError: there are not so many.
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
        """Say something, and yield the tokens of the answer as they come.

        When the iterator is closed early, or an exception (Ctrl-C, say) ends it, the answer is what was yielded. If
        that is nothing, the message is taken back.

        Args:
            message: the user's.
            options: those of ``create_chat_completion`` for this turn.

        Raises:
            ContextFullError: the message does not fit beside what was said before, which stays as it is.
            ValueError: the chat template refuses the messages, such as a system message.
        """
        messages = (*self._state.messages, {"role": "user", "content": message})
        options = {**self.options, **options}
        ours = {name: options.pop(name) for name in _OF_SPECLLAMA if name in options}
        call = chat_call(self.llm, messages, **options)
        prompt = self._prompt_of(call)
        if len(prompt) >= self.llm.n_ctx():
            raise ContextFullError(
                f"the context is full: with this message the conversation has {len(prompt)} tokens, and n_ctx is "
                f"{self.llm.n_ctx()}; forget the oldest turns, begin anew, or create the Llama with a larger n_ctx (-c)"
            )
        return self._answer(messages, call, prompt, ours)

    def _answer(
        self, messages: tuple[Message, ...], call: ChatCall, prompt: list[int], ours: dict[str, Any]
    ) -> Generator[Token, None, None]:
        answer: list[Token] = []
        ended = False
        thinking = Thinking(template_of(self.llm), call.text or "")
        tokens = cast("Generator[Token, None, None]", self.llm.generate_tokens(prompt, **call.options, **ours))
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
                stops = checked_stops(call.options.get("stop"))
                seen = (*prompt, *self._tokens_of(text, [token.id for token in answer], prompt, stops))
                messages = (*messages, {"role": "assistant", "content": text})
                self._state = _State(messages, call.text or "", () if call.text is None else seen)

    def _tokens_of(self, text: str, tokens: list[int], prompt: list[int], stops: list[str]) -> list[int]:
        """The tokens of an answer: those generated, unless a stop string was cut off at their end."""
        written = self.llm.detokenize(tokens, prev_tokens=prompt).decode("utf-8", errors="ignore")
        named = self.llm.detokenize(tokens, special=True).decode("utf-8", errors="ignore")
        if written != text or named.endswith(tuple(stops)):
            return continuation_tokens(self.llm, text)
        return tokens

    def _prompt_of(self, call: ChatCall) -> list[int]:
        """What the model has seen, and what the call's text has behind it."""
        state = self._state
        if call.text is None or not state.tokens:
            return call.tokens
        news = _text_behind(call.text, state.prompt, state.messages[-1]["content"])
        return call.tokens if news is None else [*state.tokens, *continuation_tokens(self.llm, news)]

    # Files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the messages to a JSON file: ``{"messages": [...]}``, as OpenAI's API takes them.

        Raises:
            OSError: the file cannot be written; one that was there before is as it was.
        """
        path = Path(path)
        text = json.dumps({"messages": self.messages}, ensure_ascii=False, indent=2)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            unfinished.write_text(text + "\n", encoding="utf-8")
            os.replace(unfinished, path)
        except OSError as error:
            raise OSError(f"the conversation cannot be written to {path}: {error}; choose another place") from error
        finally:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Continue the conversation of a file that ``save`` wrote, instead of this one. The next turn reads it all.

        Raises:
            OSError: the file cannot be read.
            ValueError: it holds no conversation; this one is as it was.
        """
        try:
            found: Any = json.loads(Path(path).read_text(encoding="utf-8"))
            messages: Any = found.get("messages") if isinstance(found, dict) else found
            self.messages = messages
        except (ValueError, RecursionError) as error:  # too many brackets
            raise ValueError(f"{path} holds no conversation: {error}") from error


def _text_behind(text: str, prompt: str, answer: str) -> str | None:
    """What a text has behind a prompt and its answer; None if it does not begin with them."""
    if not text.startswith(prompt):
        return None
    rest = text[len(prompt) :]
    for written in (answer, answer.rstrip()):
        if rest.startswith(written):
            return rest[len(written) :]
    # Templates put spaces around an answer, or strip it. What the model has seen is what it wrote.
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
        message["content"].encode("utf-8")  # a lone surrogate could be neither read by a model nor saved
    return tuple({"role": message["role"], "content": message["content"]} for message in messages)
