"""`specllama cache`: shows or empties a folder of earlier texts."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specllama.commands import Subparsers
    from specllama.engine import CacheContent

_ABOUT = ("file", "model", "kernels")  # what is shown of a model


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the command."""
    parser = subparsers.add_parser(
        "cache",
        help="show or empty a folder of earlier texts",
        description="Show what the folder of --cache-dir holds: a line for each model and setting, with the number of "
        "files, their size, and when one of them was used last. Nothing is deleted without --empty.",
    )
    parser.add_argument("folder", metavar="DIR", help="the folder, as --cache-dir names it")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--empty", action="store_true", help="delete all earlier texts in it; other files stay")
    what.add_argument("--json", action="store_true", help="print one object: the folder, its models and the sums")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Show what the folder holds, or delete it."""
    from specllama.engine import cache_contents, empty_cache
    from specllama.evidence.tables import size_text

    folder = os.path.abspath(os.path.expanduser(arguments.folder))
    with _errors_explained(folder):
        contents = cache_contents(folder)
        if arguments.json:
            print(json.dumps(_as_data(folder, contents)))
        elif not contents:
            print(f"{folder} holds no earlier texts", file=sys.stderr)
        elif arguments.empty:
            size = empty_cache(folder)
            print(f"deleted {size_text(size)} ({size:,} bytes) in {folder}", file=sys.stderr)
        else:
            _print_table(contents)
    return 0


@contextlib.contextmanager
def _errors_explained(folder: str) -> Iterator[None]:
    """A block whose errors get a message that names the way out."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"there is no folder {folder}: give the one that --cache-dir has named") from None
    except TimeoutError:
        raise TimeoutError(f"another program is writing into {folder}: try again when it has finished a text") from None
    except PermissionError as error:
        path = error.filename or folder
        raise PermissionError(
            f"no permission for {path}: earlier texts are their owner's, so run this as that user"
        ) from None


def _as_data(folder: str, contents: Sequence[CacheContent]) -> dict[str, Any]:
    models = [
        {
            **{name: content.about.get(name) for name in _ABOUT},
            "num_files": content.num_files,
            "num_bytes": content.num_bytes,
            "used": content.used,
        }
        for content in contents
    ]
    return {"folder": folder, "models": models, **_sums(contents)}


def _sums(contents: Sequence[CacheContent]) -> dict[str, int]:
    return {name: sum(getattr(content, name) for content in contents) for name in ("num_files", "num_bytes")}


def _print_table(contents: Sequence[CacheContent]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from specllama.commands.terminal import harmless
    from specllama.evidence.tables import size_text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in _ABOUT:
        table.add_column(title, overflow="fold")
    for title in ("files", "size", "last used"):
        table.add_column(title, no_wrap=True, justify="right")
    for content in contents:
        about = (Text(harmless(str(content.about.get(name, "?")))) for name in _ABOUT)
        used = datetime.fromtimestamp(content.used).strftime("%Y-%m-%d %H:%M")
        table.add_row(*about, f"{content.num_files:,}", size_text(content.num_bytes), used)
    sums = _sums(contents)
    table.add_row("all", "", "", f"{sums['num_files']:,}", size_text(sums["num_bytes"]), "")
    # A pipe has no width, and its readers need whole lines.
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=200)
    console.print(table)
