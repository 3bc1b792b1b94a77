"""All subcommands, in the order of the help."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Protocol

from specllama.commands import batch, bench, chat, compare, demo, generate, pull, quantize, serve, tune, verify
from specllama.commands import eval as evaluate

if TYPE_CHECKING:
    from specllama.commands import Subparsers


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
    batch,
    chat,
    serve,
    demo,
    compare,
    tune,
    bench,
    evaluate,
    verify,
)
