"""`specllama quantize`: write a model in another type."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from specllama.commands.arguments import whole
from specllama.engine.limits import MOST_THREADS
from specllama.models.catalog import FILE_TYPES

if TYPE_CHECKING:
    from specllama.commands import Subparsers


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the command."""
    parser = subparsers.add_parser(
        "quantize",
        help="write a model in another type and print its path",
        description="Write a model in another type with llama.cpp's quantizer, and print the path. "
        "A model of the catalog is then known as NAME:TYPE wherever a model is asked for.",
        epilog="types: " + ", ".join(FILE_TYPES),
    )
    parser.add_argument("model", metavar="MODEL", help="a downloaded model of the catalog, or a GGUF file")
    parser.add_argument("type", metavar="TYPE", help="for example F16, Q8_0, Q4_0 or Q4_K_M")
    parser.add_argument(
        "--output", "-o", type=Path, metavar="FILE", help="default: in the cache for a name, beside a file"
    )
    parser.add_argument(
        "--threads", "-t", type=whole(0, MOST_THREADS), default=0, metavar="N", help="default: all cores"
    )
    parser.add_argument("--force", "-f", action="store_true", help="make it again where it exists")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Quantize."""
    print(make(arguments.model, arguments.type, arguments.output, arguments.threads, arguments.force))
    return 0


def make(model: str, file_type: str, output: Path | None = None, threads: int = 0, force: bool = False) -> str:
    """Write a model in another type with a progress bar on stderr, and return its path.

    What exists is used as it is when the cache names it after its model and type; any other existing file is only
    replaced when `force` says so.
    """
    from specllama.commands.steps import shown_in_tenths, steps
    from specllama.models.quantize import default_output, quantize

    destination = output or default_output(model, file_type)
    if destination.exists() and not force:
        if output is None and not os.path.exists(model):
            return str(destination)
        raise FileExistsError(f"{destination} exists: name another file with --output, or replace it with --force")
    with steps() as progress:
        shown = shown_in_tenths(progress)
        return str(quantize(model, file_type, output=destination, threads=threads, on_progress=shown))
