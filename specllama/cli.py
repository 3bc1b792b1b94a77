"""The `specllama` command: its subcommands, and how errors leave it."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
import warnings
from collections.abc import Sequence
from typing import TextIO

from specllama.commands import COMMANDS

INTERRUPTED = 130  # 128 + SIGINT, as shells have it.
BROKEN_PIPE = 141  # 128 + SIGPIPE.


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands. It imports nothing heavy: `--help` answers at once."""
    parser = argparse.ArgumentParser(
        prog="specllama",
        description="Exact speculative decoding for GGUF models.",
        epilog="Set SPECLLAMA_DEBUG=1 to see where an error comes from.",
    )
    parser.add_argument("--version", action="version", version=f"specllama {_version()}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        subparser = command.add_parser(subparsers)
        subparser.set_defaults(run=command.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit code: 0, 1 for an error, 2 for wrong usage, 130 for Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # A terminal that cannot show a character must not end the run.
    arguments = build_parser().parse_args(argv)
    arguments.command_line = list(sys.argv[1:] if argv is None else argv)
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    try:
        code = int(arguments.run(arguments))
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("specllama: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has seen enough. Python would complain once more when it flushes stdout at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:
        if os.environ.get("SPECLLAMA_DEBUG"):
            raise
        print(f"specllama: error: {_one_line(error)}", file=sys.stderr)
        return 1
    return code


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    # Messages of these types are written for users; others mean little without their type.
    expected = (ValueError, OSError, RuntimeError, ImportError)
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


def _version() -> str:
    try:
        return importlib.metadata.version("specllama")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    raise SystemExit(main())
