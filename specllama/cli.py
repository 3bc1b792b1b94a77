"""The `specllama` command: its subcommands, and how errors leave it."""

from __future__ import annotations

import argparse
import contextlib
import logging
import math
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Protocol, TextIO

from specllama import __version__
from specllama.commands import (
    batch,
    bench,
    cache,
    chat,
    compare,
    demo,
    drafts,
    generate,
    learn,
    pull,
    quantize,
    serve,
    train_draft,
    tune,
    verify,
)
from specllama.commands import eval as evaluate
from specllama.commands.arguments import UsageError
from specllama.commands.parser import Parser

if TYPE_CHECKING:
    from specllama.commands import Subparsers

WRONG_USAGE = 2  # argparse's code
INTERRUPTED = 130  # 128 + SIGINT, as shells report it
BROKEN_PIPE = 141  # 128 + SIGPIPE.
TERMINATED = 143  # 128 + SIGTERM.
_ONCE_MORE = 5  # seconds after SIGTERM until its SystemExit is raised again, if the program still runs
_ALARMS = [signal.SIGALRM] if hasattr(signal, "SIGALRM") else []  # Windows has no SIGALRM
_ONE_SIGNAL = 1.0  # seconds in which two SIGTERMs count as one: timeout(1) sends one to the process, one to its group


class Command(Protocol):
    """The functions that the module of each command has."""

    def add_parser(self, subparsers: Subparsers) -> argparse.ArgumentParser:
        """Add the command's parser, and return it."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Do what the command says, and return the exit code."""


# In the order in which `--help` lists the commands.
COMMANDS: tuple[Command, ...] = (
    *(pull, drafts, quantize, train_draft, learn, generate, batch, chat, serve, cache),
    *(demo, compare, tune, bench, evaluate, verify),
)


def build_parser() -> Parser:
    """The parser of all commands. It imports nothing heavy: `--help` answers at once."""
    parser = Parser(
        prog="specllama",
        description="Exact speculative decoding for GGUF models.",
        epilog="Exit codes: 0 done, 1 an error, 2 wrong usage, 130 Ctrl-C, 141 a closed pipe, 143 SIGTERM; `verify` "
        "and `serve` have their own. Set SPECLLAMA_DEBUG=1 to see where an error comes from.",
    )
    parser.add_argument("--version", action="version", version=f"specllama {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(subparsers).set_defaults(run=command.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns its exit code, one of those in the parser's epilog."""
    _replace_closed_streams()
    # A terminal that cannot show a character must not end the run. Bytes of stdin that are not UTF-8 are refused later,
    # where an error message can name them.
    for stream, errors in ((sys.stdout, "replace"), (sys.stderr, "replace"), (sys.stdin, "surrogateescape")):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=errors)
    given = list(sys.argv[1:] if argv is None else argv)
    if not given:
        build_parser().print_help(sys.stderr)
        return WRONG_USAGE
    try:
        arguments = build_parser().parse_args(given)
    except SystemExit as end:  # argparse has printed all there is to say
        return int(end.code or 0)
    arguments.command_line = given
    with warnings.catch_warnings(), _decisions_shown(), _ended_by_sigterm():
        warnings.showwarning = _show_warning
        return _run(arguments)


@contextlib.contextmanager
def _decisions_shown() -> Iterator[None]:
    """A block in which the choice of ``-md auto`` is printed on stderr."""
    logger, handler = logging.getLogger("specllama.drafts"), _ToStderr(logging.INFO)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


class _ToStderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print(f"specllama: {record.getMessage()}", file=sys.stderr)


def _download_named(arguments: argparse.Namespace) -> None:
    """Download the models that ``-m`` and ``-md`` name as ORG/NAME:TYPE, as llama.cpp's ``-hf`` does.

    ORG/NAME alone is not downloaded: it may be a path with a mistake.
    """
    models = (getattr(arguments, name, None) for name in ("model", "model_path"))
    for given in (*models, *(getattr(arguments, "draft_model", None) or ())):
        if isinstance(given, str) and ":" in given and not os.path.exists(given):
            from specllama.models import HubName, on_disk, pull_model

            name = HubName.of(given)
            if name is not None and on_disk(name) is None:
                print(f"specllama: {name} is not on this machine: it is downloaded", file=sys.stderr)
                pull_model(given)


def _run(arguments: argparse.Namespace) -> int:
    try:
        _download_named(arguments)
        code = int(arguments.run(arguments))
        sys.stdout.flush()
    except (KeyboardInterrupt, SystemExit) as end:
        return _ended(end)
    except BrokenPipeError:
        _forget_stdout()  # the reader of stdout, such as `head`, has ended
        return BROKEN_PIPE
    except Exception as error:
        if (behind := _signal_behind(error)) is not None:
            return _ended(behind)
        if os.environ.get("SPECLLAMA_DEBUG"):
            raise
        is_usage = isinstance(error, UsageError)
        with contextlib.suppress(BrokenPipeError):
            if is_usage:
                print(arguments.parser.wrong(str(error)), file=sys.stderr)
            else:
                print(f"specllama: error: {_one_line(error)}", file=sys.stderr)
        _flush_or_forget_stdout()
        return WRONG_USAGE if is_usage else int(getattr(arguments, "error_code", 1))
    return code


def _ended(end: KeyboardInterrupt | SystemExit) -> int:
    if isinstance(end, KeyboardInterrupt):
        print("specllama: interrupted", file=sys.stderr)
        return INTERRUPTED
    if end.code != TERMINATED:
        raise end
    print("specllama: terminated", file=sys.stderr)
    return TERMINATED


def _signal_behind(error: BaseException) -> KeyboardInterrupt | SystemExit | None:
    """The exception of a signal that led to this error, or None.

    Some modules raise an error of their own if a signal's exception comes while they are imported.
    """
    cause = error.__cause__ or error.__context__
    while cause is not None and not isinstance(cause, (KeyboardInterrupt, SystemExit)):
        cause = cause.__cause__ or cause.__context__
    return cause


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Have SIGTERM end the block by a SystemExit, so that results are printed, kept and closed as after Ctrl-C.

    Other code may drop the exception, as some modules do while they are imported. So the exception is raised again
    after `_ONCE_MORE` seconds.
    """
    heard = -math.inf

    def end(signum: int, frame: FrameType | None) -> None:
        nonlocal heard
        last, heard = heard, time.monotonic()
        if heard - last > _ONE_SIGNAL:
            if _ALARMS:
                signal.alarm(_ONCE_MORE)
            raise SystemExit(TERMINATED)

    # Only the main thread can set handlers. A program that ignores or handles the signal itself is not disturbed.
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    before = {one: signal.signal(one, end) for one in (signal.SIGTERM, *_ALARMS)}
    try:
        yield
    finally:
        if _ALARMS:
            signal.alarm(0)
        for one, handler in before.items():
            signal.signal(one, handler)


def _replace_closed_streams() -> None:
    """Open the null device for each closed standard stream: else the next opened file would get its descriptor.

    Python has None for a stream that a shell closed (``>&-``). A program that calls `main` may have closed one, too.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None or getattr(stream, "closed", False):
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # until the process ends


def _flush_or_forget_stdout() -> None:
    try:
        sys.stdout.flush()
    except OSError:
        _forget_stdout()


def _forget_stdout() -> None:
    """Replace stdout by the null device. Else Python would fail once more when it flushes stdout at its end."""
    with contextlib.suppress(AttributeError, OSError, ValueError):  # stdout has no file descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    # Messages of these types are written for users; others mean little without their type.
    expected = (ValueError, OSError, RuntimeError, ImportError, MemoryError)
    return text if text and isinstance(error, expected) else f"{type(error).__name__}: {text}".rstrip(": ")


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    print(f"specllama: warning: {message}", file=file or sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
