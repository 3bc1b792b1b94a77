"""The subcommands, one module each: `add_parser` says what one takes, `run` does it and returns the exit code.

Nothing heavy is imported at the top of these modules, so that `specllama --help` answers at once.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Protocol

from specllama.commands import bench, chat, compare, demo, generate, pull, quantize, serve, tune, verify
from specllama.commands import eval as evaluate

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


class Command(Protocol):
    """What the module of a command offers."""

    def add_parser(self, subparsers: Subparsers) -> argparse.ArgumentParser:
        """Add the command's parser, and return it."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Do what the command says, and return the exit code."""


COMMANDS: tuple[Command, ...] = (
    pull,
    quantize,
    generate,
    chat,
    serve,
    demo,
    compare,
    tune,
    bench,
    evaluate,
    verify,
)
