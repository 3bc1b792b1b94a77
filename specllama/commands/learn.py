"""`specllama learn`: shows or forgets what is kept of a model's answers for a draft to learn from."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from specllama.commands.arguments import add_threads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specllama.commands import Subparsers
    from specllama.engine import KeptFile
    from specllama.training.learn import Learned

_SHOWN = 60  # letters of a conversation's beginning


class _Conversation(NamedTuple):
    """A kept conversation: its name, the files of its texts, and how many tokens their answers have."""

    name: str
    files: Sequence[KeptFile]
    num_tokens: int
    begins: str

    def sizes(self) -> dict[str, int]:
        """How many answers, tokens and bytes it has."""
        num_bytes = sum(file.size for file in self.files)
        return {"num_answers": len(self.files), "num_tokens": self.num_tokens, "num_bytes": num_bytes}


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the command."""
    parser = subparsers.add_parser(
        "learn",
        help="show or forget what a draft can learn from a model's answers",
        description="Show what --learn (learn=True) has kept of a model's answers: a line for each conversation, with "
        "its name, its beginning, and how many tokens its answers have. `specllama train-draft MODEL --from-use` "
        "trains a draft from it. Nothing is deleted without --forget.",
    )
    parser.add_argument("model", metavar="MODEL", help="a GGUF file, or a name of the catalog")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--now",
        action="store_true",
        help="have the draft learn from what was kept since the last time, and print its path; it needs PyTorch: "
        'pip install "specllama[train]"',
    )
    what.add_argument(
        "--forget",
        nargs="?",
        const="",
        metavar="CONVERSATION",
        help="delete the conversation of this name; without a name, all that is kept of the model, and the draft that "
        "has learned from it",
    )
    what.add_argument(
        "--json", action="store_true", help="print one object: the folder, its conversations, and the sums"
    )
    add_threads(parser, "threads for --now, default 1")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Show what is kept, or delete it."""
    from specllama.commands.arguments import UsageError
    from specllama.engine import forget_kept, kept_files, learn_dir
    from specllama.models import resolve
    from specllama.training.learn import forget_head, learned_head
    from specllama.training.target import read_target

    path = resolve(arguments.model)
    if arguments.now:
        return _learn(path, arguments.n_threads)
    weights = read_target(path).weights
    folder, head = learn_dir(weights), learned_head(weights)
    files = kept_files(folder)
    if arguments.forget is not None:
        name = arguments.forget or None
        if name is not None and all(one.name.conversation != name for one in files):
            raise UsageError(f"--forget {name}: no kept conversation of {arguments.model} has this name")
        count = forget_kept(folder, name)
        if name is None:
            forget_head(weights)
        print(f"deleted {count} answers in {folder}", file=sys.stderr)
    elif arguments.json:
        print(json.dumps(_as_data(folder, _conversations(path, files), head)))
    elif not files:
        print(f"nothing is kept of {arguments.model} yet: use it with --learn (learn=True)", file=sys.stderr)
    else:
        _print_table(_conversations(path, files))
    if arguments.forget is None and head is not None and not arguments.json:
        print(f"{_about(head)}. It is used by draft_model={str(head.path)!r} (-md)", file=sys.stderr)
    return 0


def _learn(model: str, threads: int | None) -> int:
    from specllama.commands.steps import Reporter, steps
    from specllama.training.learn import learn

    with steps() as bar:
        head = learn(model, threads=threads, progress=Reporter(bar))
    print(_about(head), file=sys.stderr)
    print(head.path)
    return 0


def _about(head: Learned) -> str:
    greedy = " / ".join(f"{100 * one:.0f}" for one in head.greedy)
    at = datetime.fromtimestamp(head.at).strftime("%Y-%m-%d %H:%M")
    return f"a draft has learned from {head.num_tokens:,} tokens, last at {at}: right at {greedy} % of the places"


def _conversations(model: str, files: Sequence[KeptFile]) -> list[_Conversation]:
    """The kept conversations, the oldest first."""
    import specllama
    from specllama.engine import read_kept

    by_name: dict[str, list[KeptFile]] = {}
    for one in files:
        by_name.setdefault(one.name.conversation, []).append(one)
    found = []
    with specllama.Llama(model, vocab_only=True, verbose=False) as llm:
        for name, own in by_name.items():
            kept = [text for text in (read_kept(one.path) for one in own) if text is not None]
            begins = llm.detokenize(kept[0].tokens.tolist()).decode("utf-8", "replace") if kept else ""
            found.append(_Conversation(name, own, sum(len(text.states) for text in kept), " ".join(begins.split())))
    return found


def _as_data(folder: Path, found: Sequence[_Conversation], head: Learned | None) -> dict[str, Any]:
    conversations = [
        {"name": one.name, "begins": one.begins, **one.sizes(), "written": one.files[-1].written / 1e9} for one in found
    ]
    learned = None
    if head is not None:
        learned = {name: getattr(head, name) for name in ("greedy", "num_tokens", "at")} | {"path": str(head.path)}
    return {"folder": str(folder), "draft": learned, "conversations": conversations, **_all(found).sizes()}


def _all(found: Sequence[_Conversation]) -> _Conversation:
    files = [file for one in found for file in one.files]
    return _Conversation("all", files, sum(one.num_tokens for one in found), "")


def _print_table(found: Sequence[_Conversation]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from specllama.commands.terminal import harmless
    from specllama.evidence.tables import size_text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("conversation", "begins"):
        table.add_column(title, no_wrap=True)
    for title in ("answers", "tokens", "size", "last"):
        table.add_column(title, no_wrap=True, justify="right")
    for one in [*found, _all(found)]:
        count, tokens, size = one.sizes().values()
        last = datetime.fromtimestamp(max(file.written for file in one.files) / 1e9).strftime("%Y-%m-%d %H:%M")
        begins = Text(harmless(one.begins[:_SHOWN]))
        table.add_row(one.name, begins, f"{count:,}", f"{tokens:,}", size_text(size), last)
    # A pipe has no width, and its readers need whole lines.
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=200)
    console.print(table)
