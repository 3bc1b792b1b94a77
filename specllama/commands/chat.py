"""`specllama chat`: a conversation in the terminal, or a script of one on stdin."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from specllama.backend.cache import cache_dir
from specllama.backend.streams import is_terminal
from specllama.commands import arguments as common

if TYPE_CHECKING:
    from specllama import Conversation
    from specllama.commands import Subparsers

_QUOTES = '"""'
_HISTORY_LINES = 1000
_HELP = (
    ("/reset", "forget all turns; the system message stays"),
    ("/drop [N]", "forget the oldest N turns (1) to make room"),
    ("/stats", "what the last answer took, and how full the context is"),
    ("/draft on|off", "draft, or decode plainly"),
    ("/system [TEXT]", "set the system message; without TEXT take it away"),
    ("/save FILE", "write the conversation, as JSON"),
    ("/load FILE", "continue the conversation of a file"),
    ("/exit", "leave, as Ctrl-D does"),
    (_QUOTES, "begins and ends a message of several lines"),
)


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the command."""
    parser = subparsers.add_parser(
        "chat",
        help="talk to a model, with a draft model or without",
        description="Talk to a model. /help lists what else can be typed; Ctrl-C stops an answer, Ctrl-D leaves. "
        "Without a terminal, stdin is a script: a message or a command on each line.",
    )
    parser.add_argument("--system", "-sys", type=common.utf8_text, metavar="TEXT", help="the system message")
    common.add_max_tokens(parser, None, of="of an answer")
    parser.add_argument(
        "--origins", action="store_true", help="colour the tokens by where they came from, as `specllama compare` does"
    )
    common.add_model_arguments(parser)
    common.add_earlier_texts(parser)
    common.add_learning(parser)
    common.add_sampling_arguments(parser)
    common.add_server_sampling_arguments(parser)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Answer messages until they end. A script exits with 1 if any of its lines has failed."""
    from specllama import Conversation

    on_terminal = is_terminal(sys.stdin)
    with contextlib.closing(common.load_llama(arguments)) as llm, common.learning_meanwhile(llm):
        chat = Chat(
            Conversation(llm, arguments.system, **common.completion_options(arguments)), origins=arguments.origins
        )
        if not on_terminal:
            chat.run(_messages(_line_of_script))
            return int(chat.failed)
        with _history(cache_dir() / "chat-history"):
            chat.greet()
            chat.run(_messages(_typed_line))
        return 0


class Chat:
    """Answers messages, and carries out commands, which begin with a slash.

    Answers and the results of commands go to stdout, and remarks go to stderr.

    Args:
        conversation: the conversation to continue.
        origins: whether to colour the tokens of answers by their origins.

    Attributes:
        failed: whether a message or a command has failed.
    """

    def __init__(self, conversation: Conversation, origins: bool = False) -> None:
        from rich.console import Console

        self._conversation = conversation
        self._origins = origins
        self._out = Console(highlight=False)
        self._remarks = Console(highlight=False, stderr=True)
        self._drafting = conversation.llm.num_draft_tokens or "auto"
        self._own_file: Path | None = None  # the file that /save may overwrite
        self._unsent: str | None = None  # the last message, if it did not fit into the context
        self.failed = False

    def greet(self) -> None:
        """Tell the user how to begin."""
        self._remark("/help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves.")
        if self._origins:
            from specllama.commands.terminal import legend

            self._out.print(legend())

    def run(self, messages: Iterable[str]) -> None:
        """Handle messages and commands until they end, or until one is /exit."""
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
        command = getattr(self, f"_do_{name[1:]}", None)
        if command is None:
            raise ValueError(f"no command {name}: /help lists them; put a space before a message that begins with /")
        command(argument.strip())

    def _answer(self, message: str) -> None:
        from specllama import ContextFullError
        from specllama.commands.terminal import STYLES, print_piece

        conversation = self._conversation
        turns = conversation.num_turns
        self._unsent = None
        try:
            answer = conversation.say(common.checked_text(message))
        except ContextFullError as error:
            self._unsent = message
            way_out = "/drop forgets the oldest turn, /reset all; then this message is answered"
            if turns == 0:
                way_out = "the message alone is too long: shorten it, or start with a larger --ctx-size/-c"
            raise ContextFullError(f"{error}. Here: {way_out}") from None
        try:
            with contextlib.closing(answer):
                for token in answer:
                    plain = "dim" if conversation.is_thinking else ""
                    print_piece(self._out, token.text, STYLES[token.origin] if self._origins else plain)
        finally:
            print(flush=True)
            if conversation.num_turns == turns:
                self._remark("(your message was taken back: nothing was said)")
        if conversation.is_full:
            self._remark("(the context is full, which ended the answer: /drop forgets the oldest turn, /reset all)")

    def _answer_unsent(self) -> None:
        if self._unsent is not None:
            self._answer(self._unsent)

    # The commands: _do_reset carries out /reset

    def _do_help(self, argument: str) -> None:
        for usage, meaning in _HELP:
            print(f"{usage:16}{meaning}")

    def _do_reset(self, argument: str) -> None:
        self._conversation.reset()
        self._remark("All turns are forgotten.")
        self._answer_unsent()

    def _do_drop(self, argument: str) -> None:
        if argument and not argument.isdecimal():
            raise ValueError(f"/drop takes a number of turns, not {argument!r}")
        self._conversation.forget(int(argument or 1))
        self._remark(f"{self._turns()} left.")
        self._answer_unsent()

    def _do_stats(self, argument: str) -> None:
        conversation = self._conversation
        print(conversation.llm.stats)
        n_ctx = conversation.llm.n_ctx()
        print(f"{self._turns()}, {conversation.num_tokens} of {n_ctx} tokens of the context", flush=True)

    def _do_draft(self, argument: str) -> None:
        if argument not in ("on", "off"):
            raise ValueError("/draft takes on or off")
        if argument == "on" and self._conversation.llm.draft_model is None:
            raise ValueError("there is no draft: start the chat with --draft-model/-md, or -md lookup")
        self._conversation.options["num_draft_tokens"] = self._drafting if argument == "on" else 0
        self._remark(f"Drafting is {argument}.")

    def _do_system(self, argument: str) -> None:
        self._conversation.system = common.checked_text(argument) or None
        self._remark("The system message is set." if argument else "There is no system message.")

    def _do_save(self, argument: str) -> None:
        path = _path(argument, "/save")
        if path.exists() and path != self._own_file:
            raise ValueError(f"{path} exists: choose another name, or remove it")
        self._conversation.save(path)
        self._own_file = path
        self._remark(f"{self._turns()} saved.")

    def _do_load(self, argument: str) -> None:
        path = _path(argument, "/load")
        if not path.is_file():
            raise ValueError(f"there is no file {path}: /load takes one that /save has written")
        self._conversation.load(path)
        self._own_file = path
        self._remark(f"{self._turns()} loaded.")

    def _turns(self) -> str:
        count = self._conversation.num_turns
        return f"{count} turn{'' if count == 1 else 's'}"

    def _remark(self, text: str) -> None:
        self._remarks.print(text, style="dim", markup=False, soft_wrap=True)


def _path(argument: str, command: str) -> Path:
    if not argument:
        raise ValueError(f"{command} needs the name of a file")
    try:
        return Path(argument).expanduser().absolute()
    except RuntimeError:
        raise ValueError(f"there is no home folder for {argument}: give the whole path") from None


def _messages(read: Callable[[str], str | None]) -> Iterator[str]:
    """All messages up to the end of stdin, without blank ones."""
    while True:
        try:
            message = read_message(read)
        except KeyboardInterrupt:
            if read is not _typed_line:
                raise
            print("\n(Ctrl-D or /exit leaves)", file=sys.stderr)
            continue
        if message is None:
            return
        if message.strip():
            yield message


def read_message(read: Callable[[str], str | None]) -> str | None:
    """Read a message. It is one line, or any number of lines between three quotes.

    Args:
        read: gives the next line; None at the end. Its argument is the prompt to show on a terminal.

    Returns:
        The message; None at the end.
    """
    line = read("> ")
    if line is None or not line.startswith(_QUOTES):
        return line
    lines = [line.removeprefix(_QUOTES)]
    while not lines[-1].rstrip().endswith(_QUOTES) and (more := read(". ")) is not None:
        lines.append(more)
    lines[-1] = lines[-1].rstrip().removesuffix(_QUOTES)
    return "\n".join(lines).strip("\n")


def _typed_line(prompt: str) -> str | None:
    try:
        if is_terminal(sys.stdout):
            return input(prompt)
        print(prompt, end="", file=sys.stderr, flush=True)
        return input()
    except EOFError:
        print(file=sys.stderr)
        return None


def _line_of_script(prompt: str) -> str | None:
    line = sys.stdin.readline()
    return line.removesuffix("\n") if line else None


@contextlib.contextmanager
def _history(path: Path) -> Iterator[None]:
    """A context manager that offers the lines of earlier chats, and saves the lines that are typed in its block."""
    try:
        import readline
    except ImportError:  # Windows has no readline
        yield
        return
    can_be_read = True
    try:
        readline.read_history_file(path)
    except FileNotFoundError:  # this is the first chat
        pass
    except OSError as problem:  # a history that cannot be read must not be overwritten
        can_be_read = False
        _warn(f"the history {path} cannot be read, and nothing is added to it: {problem}")
    try:
        yield
    finally:
        if can_be_read:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                readline.set_history_length(_HISTORY_LINES)
                readline.write_history_file(path)
            except OSError as problem:
                _warn(f"the history of the chat was not saved in {path}: {problem}")


def _warn(message: str) -> None:
    print(f"specllama: warning: {message}", file=sys.stderr)
