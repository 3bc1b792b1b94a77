"""A chat: messages are answered, and lines that begin with a slash are obeyed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from specllama._core import ContextFullError
from specllama.commands.arguments import checked_text
from specllama.commands.terminal import STYLES, legend, print_piece

if TYPE_CHECKING:
    from specllama.conversation import Conversation
    from specllama.token import Token

_HELP = (
    ("/reset", "forget all turns; the system message stays"),
    ("/drop [N]", "forget the oldest N turns (1) to make room"),
    ("/stats", "what the last answer took, and how full the context is"),
    ("/draft on|off", "draft, or decode plainly"),
    ("/system [TEXT]", "set the system message; without TEXT take it away"),
    ("/save FILE", "write the conversation, as JSON"),
    ("/load FILE", "continue the conversation of a file"),
    ("/exit", "leave, as Ctrl-D does"),
    ('"""', "begins and ends a message of several lines"),
)


class ChatSession:
    """Obeys and answers. Answers and what was asked for go to stdout, remarks to stderr.

    Args:
        conversation: what is continued.
        origins: colour the answers' tokens by where they came from.
    """

    def __init__(self, conversation: Conversation, origins: bool = False) -> None:
        self._conversation = conversation
        self._origins = origins
        self._out = Console(highlight=False)
        self._remarks = Console(highlight=False, stderr=True)
        self._drafting = conversation.llm.num_draft_tokens or "auto"
        self._own_file: Path | None = None  # that /save may overwrite
        self._unsent: str | None = None  # did not fit
        self.failed = False
        """Whether anything could not be done."""
        self._commands: dict[str, Callable[[str], None]] = {
            "/help": self._help,
            "/reset": self._reset,
            "/drop": self._drop,
            "/stats": self._stats,
            "/draft": self._draft,
            "/system": self._system,
            "/save": self._save,
            "/load": self._load,
        }

    def greet(self) -> None:
        """Say how to begin."""
        self._remark("/help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves.")
        if self._origins:
            self._out.print(legend())

    def run(self, messages: Iterable[str]) -> None:
        """Take messages until they end, or one is /exit."""
        for message in messages:
            if message.strip() == "/exit":
                return
            try:
                self._take(message)
            except KeyboardInterrupt:
                self._remark("(stopped)")
            except (ValueError, OSError, RuntimeError) as error:
                self.failed = True
                self._remark(f"error: {error}")

    def _take(self, message: str) -> None:
        if not message.startswith("/"):
            self._answer(message)
            return
        name, _, argument = message.partition(" ")
        if name not in self._commands:
            raise ValueError(f"no command {name}: /help lists them; put a space before a message that begins with /")
        self._commands[name](argument.strip())

    # Answers

    def _answer(self, message: str) -> None:
        conversation = self._conversation
        turns = conversation.num_turns
        self._unsent = None
        try:
            answer = conversation.say(checked_text(message))
        except ContextFullError as error:
            self._unsent = message
            way_out = "/drop forgets the oldest turn, /reset all; then this message is answered"
            if turns == 0:
                way_out = "the message alone is too long: shorten it, or start with a larger --ctx-size/-c"
            raise ContextFullError(f"{error}. Here: {way_out}") from None
        try:
            with contextlib.closing(answer):
                for token in answer:
                    self._show(token)
        finally:
            print(flush=True)
            if conversation.num_turns == turns:
                self._remark("(your message was taken back: nothing was said)")
        if conversation.is_full:
            self._remark("(the context is full, which ended the answer: /drop forgets the oldest turn, /reset all)")

    def _show(self, token: Token) -> None:
        print_piece(self._out, token.text, STYLES[token.origin] if self._origins else "")

    def _answer_unsent(self) -> None:
        if self._unsent is not None:
            self._answer(self._unsent)

    # Commands

    def _help(self, argument: str) -> None:
        for usage, meaning in _HELP:
            print(f"{usage:16}{meaning}")

    def _reset(self, argument: str) -> None:
        self._conversation.reset()
        self._remark("All turns are forgotten.")
        self._answer_unsent()

    def _drop(self, argument: str) -> None:
        if argument and not argument.isdecimal():
            raise ValueError(f"/drop takes a number of turns, not {argument!r}")
        self._conversation.forget(int(argument or 1))
        self._remark(f"{_turns(self._conversation)} left.")
        self._answer_unsent()

    def _stats(self, argument: str) -> None:
        conversation = self._conversation
        print(conversation.llm.stats)
        n_ctx = conversation.llm.n_ctx()
        print(f"{_turns(conversation)}, {conversation.num_tokens} of {n_ctx} tokens of the context", flush=True)

    def _draft(self, argument: str) -> None:
        if argument not in ("on", "off"):
            raise ValueError("/draft takes on or off")
        if argument == "on" and self._conversation.llm.draft_model is None:
            raise ValueError("there is no draft: start the chat with --draft-model/-md, or -md lookup")
        self._conversation.options["num_draft_tokens"] = self._drafting if argument == "on" else 0
        self._remark(f"Drafting is {argument}.")

    def _system(self, argument: str) -> None:
        self._conversation.system = checked_text(argument) or None
        self._remark("The system message is set." if argument else "There is no system message.")

    def _save(self, argument: str) -> None:
        path = _path(argument, "/save")
        if path.exists() and path != self._own_file:
            raise ValueError(f"{path} exists: choose another name, or remove it")
        self._conversation.save(path)
        self._own_file = path
        self._remark(f"{_turns(self._conversation)} saved.")

    def _load(self, argument: str) -> None:
        path = _path(argument, "/load")
        self._conversation.load(path)
        self._own_file = path
        self._remark(f"{_turns(self._conversation)} loaded.")

    def _remark(self, text: str) -> None:
        self._remarks.print(text, style="dim", markup=False, soft_wrap=True)


def _path(argument: str, command: str) -> Path:
    if not argument:
        raise ValueError(f"{command} needs the name of a file")
    return Path(argument).expanduser().absolute()


def _turns(conversation: Conversation) -> str:
    count = conversation.num_turns
    return f"{count} turn{'' if count == 1 else 's'}"
