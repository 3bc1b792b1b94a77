"""`specllama learn`: shows and forgets what is kept of a model's answers, and has a draft learn from it."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import threading
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from specllama.backend.streams import show
from specllama.commands.arguments import add_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specllama import Llama
    from specllama.commands import Subparsers
    from specllama.commands.gains import Gains
    from specllama.commands.steps import Reporter
    from specllama.engine import KeptFile, Learned
    from specllama.prompts import RenderedPrompt

_SHOWN = 60  # letters of a conversation's beginning
_MEASURED, _QUESTIONS = 64, 6  # the most tokens of an answer that is measured, and the most answers
_LONGEST = 2048  # tokens of a context in which is measured
_SPARE = 1 << 30  # bytes of memory that stay free beside another copy of the model
_ADVICE = "it learns more as the model is used"


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
        "--idle",
        action="store_true",
        help="stay, and have the draft learn whenever enough was kept, nobody has asked the model for five minutes, "
        "and the machine is neither busy nor on battery; `serve` and `chat` with --learn do the same by themselves",
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
    parser.add_argument("--make-way", action="store_true", help=argparse.SUPPRESS)  # how `IdleLearner` calls --now
    add_threads(parser, "threads for --now and --idle, default 1")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Show what is kept, or delete it."""
    from specllama.commands.arguments import UsageError
    from specllama.engine import kept_files, learn_dir, learned_head
    from specllama.models import resolve
    from specllama.training.target import read_target

    path = resolve(arguments.model)
    if arguments.now:
        return _learn(path, arguments.n_threads or 1, make_way=arguments.make_way)
    if arguments.idle:
        return _wait(path, arguments.n_threads or 1)
    weights = read_target(path).weights
    folder, head = learn_dir(weights), learned_head(weights)
    files = kept_files(folder)
    if arguments.forget is not None:
        name = arguments.forget or None
        if name is not None and all(one.name.conversation != name for one in files):
            raise UsageError(f"--forget {name}: no kept conversation of {arguments.model} has this name")
        count = _forget(weights, name)
        print(f"deleted {count} answers in {folder}", file=sys.stderr)
    elif arguments.json:
        print(json.dumps(_as_data(folder, _conversations(path, files), head)))
    elif not files:
        print(f"nothing is kept of {arguments.model} yet: use it with --learn (learn=True)", file=sys.stderr)
    else:
        _print_table(_conversations(path, files))
    if arguments.forget is None and not arguments.json and (files or head is not None):
        print(_outlook(path, weights, head), file=sys.stderr)
    return 0


def _forget(weights: str, conversation: str | None) -> int:
    """Delete kept texts, and what is being learned from them; without a name, the head, too. Returns how many texts."""
    from specllama.engine import forget_head, forget_kept, learn_dir
    from specllama.training.idle import MAKES_WAY, in_its_place
    from specllama.training.learn import forget_session

    with in_its_place(weights):
        forget_session(weights, MAKES_WAY)
        if conversation is None:
            forget_head(weights)
        return forget_kept(learn_dir(weights), conversation)


def _outlook(model: str, weights: str, head: Learned | None) -> str:
    """What has learned, what it gains, and what is lacking until it learns more."""
    from specllama.engine import fresh_texts, measured_gain

    new, said = fresh_texts(weights, head), []
    if head is not None:
        said.append(_about(head))
        if (gain := measured_gain(model, str(head.path))) is not None:
            said.append(
                f"it makes whole calls {gain[0]:.2f} times as fast as plain decoding (standard error {gain[1]:.2f})"
            )
        said.append(f"it is used by draft_model={str(head.path)!r} (-md), and by auto if nothing else is faster")
    how = "by --now, or when the machine is idle"
    if new.num_tokens < new.least:
        how = f"{new.least:,} are needed, use it with --learn"
    elif not new.has_both:
        how = "other conversations are needed, too, because one of ten is held out"
    said.append(f"{new.num_tokens:,} tokens wait to be learned: {how}")
    return "\n".join(f"{one[0].upper()}{one[1:]}." for one in said)


def _learn(model: str, threads: int, *, make_way: bool) -> int:
    """Learn, and say what it gains. The measuring uses all threads that suit the machine."""
    from specllama.commands.gains import chosen_with, verdict
    from specllama.commands.steps import Reporter, errors_reported, steps
    from specllama.engine import fresh_texts, learned_head
    from specllama.training import idle
    from specllama.training.learn import learn
    from specllama.training.target import read_target

    weights = read_target(model).weights
    with contextlib.ExitStack() as stack:
        if make_way:
            idle.make_way()
        else:
            stack.enter_context(idle.in_its_place(weights))
        reporter = Reporter(stack.enter_context(steps()))
        head = learned_head(weights)
        if head is None or not make_way or fresh_texts(weights, head).are_enough:  # else it is to be measured alone
            head = learn(model, threads=threads, wait=0.0 if make_way else idle.MAKES_WAY, progress=reporter)
        gains = _gains(model, head, reporter, beside=make_way)
    chosen = None
    with errors_reported("what was measured cannot be kept for -md auto"):
        chosen = chosen_with(model, head.path, gains) if gains else None
    show(f"{_about(head)}. {verdict(head.path, gains, chosen, _ADVICE)}\n")
    print(head.path)
    return 0


def _gains(model: str, head: Learned, reporter: Reporter, *, beside: bool) -> Gains | None:
    """What the head gains. Beside another program it is not measured if memory lacks, and lookup is not."""
    from specllama.backend.memory import free_memory
    from specllama.commands.gains import gains_of
    from specllama.commands.steps import errors_reported
    from specllama.models import size_of

    if beside and free_memory() < size_of(model) + _SPARE:
        return None
    reporter.note("is it faster than plain decoding?" if beside else "is it faster than plain decoding, and lookup?")
    found: list[Gains] = []
    with errors_reported("the draft has learned, and cannot be compared with plain decoding"):
        questions = _questions(head)
        found.append(gains_of(_opening(model), str(head.path), _MEASURED, reporter, questions, lookup=not beside))
    return found[0] if found else None


def _opening(model: str) -> Callable[[str], contextlib.closing[Llama]]:
    import specllama
    from specllama.backend.cpu import default_threads
    from specllama.models import trained_context

    n: dict[str, Any] = dict.fromkeys(("n_threads", "n_threads_batch"), default_threads())
    n["n_ctx"] = min(_LONGEST, trained_context(model) or _LONGEST)
    return lambda draft: contextlib.closing(specllama.Llama(model, draft_model=draft, verbose=False, **n))


def _questions(head: Learned) -> list[RenderedPrompt]:
    """The prompts of the newest answers that the head does not learn from."""
    from specllama.engine import kept_files, read_kept
    from specllama.prompts import RenderedPrompt

    held_out = [one for one in kept_files(head.path.parent) if one.name.is_held_out]
    kept = [found for one in held_out[-_QUESTIONS:] if (found := read_kept(one.path)) is not None]
    return [RenderedPrompt(one.tokens[: one.first + 1].tolist(), []) for one in kept]


def _wait(model: str, threads: int) -> int:
    """Have the draft learn when the machine is idle, until Ctrl-C."""
    from specllama.training.idle import QUIET, IdleLearner
    from specllama.training.target import read_target
    from specllama.training.torch_here import require_gguf_package, require_torch

    require_torch(), require_gguf_package()
    learner = IdleLearner(model, read_target(model).weights, threads=threads, on_failure=lambda text: show(f"{text}\n"))
    show(f"the draft learns when nobody has asked {Path(model).name} for {QUIET / 60:.0f} minutes; Ctrl-C ends this\n")
    learner.run(threading.Event())
    return 0


def _about(head: Learned) -> str:
    greedy = " / ".join(f"{100 * one:.0f}" for one in head.greedy)
    return (
        f"a draft has learned from {head.num_tokens:,} tokens, last at {_time(head.at)}: right at {greedy} % of the "
        "places"
    )


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


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
    learned = None if head is None else {**head.shown(), "path": str(head.path)}
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
    for title in ("answers", "tokens", "size", "since", "last"):
        table.add_column(title, no_wrap=True, justify="right")
    for one in [*found, _all(found)]:
        count, tokens, size = one.sizes().values()
        first, last = (_time(bound(file.written for file in one.files) / 1e9) for bound in (min, max))
        begins = Text(harmless(one.begins[:_SHOWN]))
        table.add_row(one.name, begins, f"{count:,}", f"{tokens:,}", size_text(size), first, last)
    # A pipe has no width, and its readers need whole lines.
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=200)
    console.print(table)
