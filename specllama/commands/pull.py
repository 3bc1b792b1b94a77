"""`specllama pull`: downloads a model of the catalog or of the hub, or lists models."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from specllama.models import known_models, models_dir

if TYPE_CHECKING:
    from specllama.commands import Subparsers


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the command."""
    parser = subparsers.add_parser(
        "pull",
        help="download a model and print its path",
        description="Download a model, and print its path. A model of the catalog is checked by its hash, and is kept "
        "in SPECLLAMA_CACHE, or else in the user's cache directory. ORG/NAME, ORG/NAME:TYPE or ORG/NAME:FILE is a GGUF "
        "file of the hub, and is kept in the hub's own cache (HF_HOME). HF_TOKEN is sent if it is set.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("name", nargs="?", metavar="NAME", help="a name from `specllama pull --list`, or ORG/NAME:TYPE")
    what.add_argument(
        "--list", action="store_true", help="show the models of the catalog, and which models are on this machine"
    )
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Download a model, or list models."""
    if arguments.list:
        _list()
        return 0
    from specllama.models import pull_model

    print(pull_model(arguments.name))
    return 0


def _list() -> None:
    from rich.console import Console
    from rich.table import Table

    from specllama.commands.terminal import gigabytes
    from specllama.models import all_on_disk

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("name", "model", "type", "size", "licence", "here"):
        table.add_column(title, no_wrap=True, justify="right" if title == "size" else "left")
    for model in known_models().models.values():
        here = [model.type] if model.is_downloaded() else []
        here += model.variants()
        size = gigabytes(model.size)
        table.add_row(model.name, model.title, model.type, size, model.licence, ", ".join(here) or "-")
    for name, _, num_bytes in all_on_disk():
        table.add_row(name, "", "", gigabytes(num_bytes), "", "yes")
    # A pipe has no width, and its readers need whole lines.
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=200)
    console.print(table)
    Console(stderr=True, highlight=False).print(f"models lie in {models_dir()}", markup=False, soft_wrap=True)
