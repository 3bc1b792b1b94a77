"""`specllama train-draft`: trains a draft for a model that has none."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specllama.backend.streams import show
from specllama.commands.arguments import UsageError, add_threads, read_prompts, usage_checked, whole
from specllama.models import EAGLE3, HYDRA, TRAINED

if TYPE_CHECKING:
    from specllama.commands import Subparsers
    from specllama.commands.gains import Gains
    from specllama.commands.steps import Reporter
    from specllama.training.train import Budget, Trained

_HOURS, _MOST_HOURS = 8.0, 10_000
_MOST_ANSWER = 448


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the command."""
    parser = subparsers.add_parser(
        "train-draft",
        help="train a draft for a model that has none, and print its path",
        description="Train a head for a model on this machine, from its GGUF alone: the model writes text, "
        "its states are read, the head is trained, written beside the model as KIND-NAME.gguf, and compared with "
        "plain decoding and with lookup. A head does not change the text that the model writes; the text comes faster "
        "if the head is often right. "
        'It needs PyTorch: pip install "specllama[train]". If the command was interrupted, the same command continues '
        "where it stopped. Progress goes to stderr.",
    )
    parser.add_argument("model", metavar="MODEL", help="a GGUF file, or a name of the catalog")
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--hours", type=_positive, metavar="H", help="the time for all steps together, default 8")
    budget.add_argument(
        "--tokens", type=whole(1), metavar="N", help="in place of --hours: the tokens of text to learn from"
    )
    parser.add_argument(
        "--text",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="a file of your own to learn from, too; may be repeated. The model answers prompts (.jsonl, .json; as "
        "bench reads them), and learns any other text as it is",
    )
    parser.add_argument(
        "--from-use",
        action="store_true",
        help="learn first from what --learn has kept while the model was used, and have the model write only what "
        "lacks of --hours or --tokens; without these nothing is written",
    )
    parser.add_argument(
        "--from",
        dest="start",
        type=Path,
        metavar="HEAD",
        help="train the EAGLE-3 head in this file further: for example a public one on your own text, or one whose "
        "model was fine-tuned",
    )
    parser.add_argument(
        "--kind",
        choices=TRAINED,
        help="the kind of draft. The default is hydra, which learns most in the least time, and eagle3 with --from and "
        "where this processor has neither AVX2 nor AVX-512: specllama computes a Hydra head itself. eagle3 has "
        "attention, and llama.cpp's own tools open it; medusa and blockwise do not read what they have drafted; "
        "sibling is no head, but a small model of the family that learns to write as this one does (--draft); pard "
        "makes a small model of the family say several tokens in one decode (--draft)",
    )
    parser.add_argument(
        "--draft",
        type=str,
        metavar="SMALL",
        help="for --kind sibling and --kind pard: the small model that learns, a GGUF file or a name of the catalog",
    )
    parser.add_argument(
        "--output", "-o", type=Path, metavar="FILE", help="the file to write, default: KIND-NAME.gguf beside the model"
    )
    parser.add_argument("--force", "-f", action="store_true", help="replace a head that exists")
    parser.add_argument(
        "--max-tokens",
        "-n",
        type=whole(8, _MOST_ANSWER),
        default=256,
        metavar="N",
        help="the most tokens of an answer to learn from, default 256",
    )
    parser.add_argument(
        "--parallel",
        dest="max_parallel",
        type=whole(1, 64),
        default=16,
        metavar="N",
        help="texts to write at once, default 16",
    )
    add_threads(parser, "threads for everything, default: what suits this machine")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Train a head, and report whether it makes decoding faster."""
    from specllama.backend.cpu import default_threads
    from specllama.commands.gains import chosen_with, verdict
    from specllama.commands.steps import errors_reported
    from specllama.training.train import Budget, require_usable

    arguments.kind = arguments.kind or _usual_kind(arguments)
    with usage_checked():
        require_usable(arguments.kind, arguments.start, arguments.draft, from_use=arguments.from_use)
    for path in arguments.text:
        if not path.is_file():
            raise UsageError(f"--text {path}: there is no such file")
    if arguments.start is not None and not arguments.start.is_file():
        raise UsageError(f"--from {arguments.start}: there is no such file")
    hours, tokens = arguments.hours, arguments.tokens
    if hours is None and tokens is None:
        hours, tokens = (None, _num_kept(arguments.model)) if arguments.from_use else (_HOURS, None)
    budget = Budget(hours, tokens, arguments.max_tokens, arguments.max_parallel)
    threads = arguments.n_threads or default_threads()
    skipped = _skipped(arguments.text)
    try:
        made, path, gains = _train(arguments, budget, threads, skipped)
    except (KeyboardInterrupt, SystemExit):
        print("specllama: the same command goes on where it was", file=sys.stderr)
        raise
    with errors_reported("what was measured cannot be kept for -md auto"):
        chosen = chosen_with(made.target, path, gains) if gains else None
        show(f"{verdict(path, gains, chosen)}\n")
    print(path)
    return 0


def _num_kept(model: str) -> int:
    """How many tokens were kept while a model was used.

    Raises:
        UsageError: there are none.
    """
    from specllama.engine import kept_files, learn_dir, num_kept
    from specllama.models import resolve
    from specllama.training.target import read_target

    found = num_kept(kept_files(learn_dir(read_target(resolve(model)).weights)))
    if found == 0:
        raise UsageError(
            f"--from-use: nothing was kept of {model} yet: use it with --learn (learn=True), or leave out --from-use"
        )
    return found


def _usual_kind(arguments: argparse.Namespace) -> str:
    from specllama.backend.kernels import has_instructions

    return HYDRA if arguments.start is None and has_instructions() else EAGLE3


def _train(
    arguments: argparse.Namespace, budget: Budget, threads: int, skipped: list[str]
) -> tuple[Trained, Path, Gains | None]:
    """Train, and compare. Returns the result, the draft's path, and the gains; None if none could be measured."""
    from specllama.commands.steps import Reporter, errors_reported, steps
    from specllama.training.train import trained

    with contextlib.ExitStack() as stack:
        reporter = Reporter(stack.enter_context(steps()))
        for note in skipped:
            reporter.note(note)
        made = stack.enter_context(
            trained(
                arguments.model,
                budget,
                kind=arguments.kind,
                output=arguments.output,
                text=[str(path) for path in arguments.text],
                start=arguments.start,
                small=arguments.draft,
                threads=threads,
                force=arguments.force,
                from_use=arguments.from_use,
                progress=reporter,
            )
        )
        reporter.note(
            "which type of its weights is the fastest here, and is it faster than plain decoding, and lookup?"
        )
        best, gains = next(iter(made.heads)), None
        with errors_reported("the draft is trained, and cannot be compared with plain decoding"):
            best, gains = _measured(made, max(16, arguments.max_tokens // 4), threads, reporter)
        return made, made.keep(best), gains


def _measured(made: Trained, most: int, threads: int, reporter: Reporter) -> tuple[str, Gains]:
    """The fastest type of the draft's weights, and the gains with a draft of this type."""
    import specllama
    from specllama.commands.gains import gains_of
    from specllama.evidence.draft_pays import fastest_type

    def opened(draft: str) -> contextlib.closing[specllama.Llama]:
        n: dict[str, Any] = {"n_ctx": made.n_ctx, "n_threads": threads, "n_threads_batch": threads}
        return contextlib.closing(specllama.Llama(made.target, draft_model=draft, verbose=False, **n))

    with opened(str(next(iter(made.heads.values())))) as llm:
        best = fastest_type(llm, made.heads, most, reporter.answered)
    return best, gains_of(opened, str(made.heads[best]), most, reporter)


def _skipped(texts: list[Path]) -> list[str]:
    """Messages about the lines of the user's files that hold no prompt. Files that cannot be read end the command."""
    from specllama.prompts import read_text
    from specllama.training.text import has_prompts

    with usage_checked():
        for path in texts:
            if not has_prompts(path.name):
                read_text(path, "text")
        return read_prompts(path for path in texts if has_prompts(path.name))[1]


def _positive(text: str) -> float:
    try:
        hours = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of hours") from None
    if not 0.0 < hours < _MOST_HOURS:
        raise argparse.ArgumentTypeError(f"{text} must be more than 0, and less than {_MOST_HOURS}")
    return hours
