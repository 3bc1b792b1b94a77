"""`specllama batch`: answers the prompts of a file, and writes the answers into another file."""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import sys
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from specllama.backend.streams import is_terminal, show
from specllama.commands import arguments as common

if TYPE_CHECKING:
    from specllama.batch.batch import Batch, Progress
    from specllama.batch.survey import Survey
    from specllama.commands import Subparsers
    from specllama.many import Outcome

_LINE_SECONDS = 30.0  # the time between two lines of progress if stderr is no terminal


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the command."""
    parser = subparsers.add_parser(
        "batch",
        help="answer a file of prompts, many at once",
        description="Answer each line of a file, many at once. Each answer is appended to the output when its text "
        "ends. If the command was interrupted, the same command continues, and never answers a line twice. A line "
        "that fails gets its error as its answer, and the exit code stays 0.",
    )
    parser.add_argument(
        "--input",
        type=Path,
        required=True,
        metavar="FILE",
        help='JSON lines: {"prompt": ...} or {"messages": [...]} with other arguments of a completion, or OpenAI\'s '
        "batch format",
    )
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
        metavar="FILE",
        help="the file that answers are appended to, in the order in which they end",
    )
    common.add_parallel(parser, default=8, of="texts")
    parser.add_argument(
        "--max-tokens",
        "-n",
        type=common.whole(1),
        metavar="N",
        help="the most tokens of an answer whose line does not say it; default: 16 for a prompt, as many as fit for a "
        "chat",
    )
    parser.add_argument("--quiet", "-q", action="store_true", help="show neither progress nor statistics")
    common.add_model_arguments(parser)
    common.add_earlier_texts(parser)
    common.add_learning(parser)
    common.add_sampling_arguments(parser, "the seed of every text whose line has none")
    common.add_server_sampling_arguments(parser)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Answer all lines that have no answer yet. On Ctrl-C and SIGTERM, tell the user how to continue."""
    from specllama.batch.answers import Answers
    from specllama.batch.survey import Survey

    with common.usage_checked():
        _check_files(arguments.input, arguments.output)
    interrupted: BaseException | None = None
    with Answers(arguments.output) as answers:
        survey = Survey.of(arguments.input, answers)
        if survey.num_lines == survey.num_done:
            if not arguments.quiet:
                print(f"all {survey.num_lines} lines have their answers in {arguments.output}", file=sys.stderr)
            return 0
        _require_server(survey)
        llm = common.load_llama(arguments)
        with contextlib.closing(llm):
            from specllama.batch.batch import Batch

            name = Path(arguments.model_path).name
            batch = Batch(llm, arguments.input, answers, defaults=common.completion_options(arguments), name=name)
            try:
                batch.run(
                    min(arguments.max_parallel, survey.num_lines - survey.num_done), _progress_of(arguments, survey)
                )
            except (KeyboardInterrupt, SystemExit) as error:
                interrupted = error
    _report(arguments, batch, survey, answers.num_whole())
    if interrupted is not None:
        raise interrupted
    return 0


def _check_files(source: Path, output: Path) -> None:
    """Check that the batch can be continued later.

    Raises:
        ValueError: a file is a pipe, or input and output are one file.
        OSError: the input cannot be read.
    """
    for option, path in (("--input", source), ("--output", output)):
        if str(path) == "-" or (path.exists() and not path.is_file()):
            raise ValueError(f"{option} {path} is no file: a batch reads it again to continue where it stopped")
    if not source.exists():
        raise FileNotFoundError(
            f"--input {source} does not exist: give the path of a file with a prompt, a chat or a request on each line"
        )
    with source.open("rb"):  # an unreadable input fails here, before the output is created
        pass
    if output.exists() and source.samefile(output):
        raise ValueError(f"--input and --output are both {source}: give another --output")


def _require_server(survey: Survey) -> None:
    missing = next((name for name in ("fastapi", "prometheus_client") if not importlib.util.find_spec(name)), None)
    if survey.has_requests and missing:
        raise ImportError(f'lines in OpenAI\'s format need {missing}: pip install "specllama[server]"')


def _progress_of(arguments: argparse.Namespace, survey: Survey) -> Progress | None:
    from specllama.many import progress_bar

    if arguments.quiet:
        return None
    follow = progress_bar if is_terminal(sys.stderr) else _progress_lines
    return functools.partial(follow, total=survey.num_lines, num_done=survey.num_done)


def _progress_lines(outcomes: Iterator[Outcome], total: int, num_done: int) -> Generator[Outcome, None, None]:
    """Pass outcomes on, and print a line on stderr every half minute, so that a log shows the progress."""
    from specllama.commands.steps import duration

    started, under_way = time.monotonic(), threading.Lock()  # a Lock, since Ctrl-C could leave an Event half set
    under_way.acquire()
    num_new = num_tokens = 0

    def report() -> None:
        while not under_way.acquire(timeout=_LINE_SECONDS):
            seconds = time.monotonic() - started
            left = f"; {duration(seconds / num_new * (total - num_done - num_new))} left" if num_new else ""
            show(f"{num_done + num_new} of {total} answers, {num_tokens / seconds:.1f} tokens/s{left}\n")

    try:
        threading.Thread(target=report, name="specllama-progress", daemon=True).start()
        for outcome in outcomes:
            num_new += 1
            num_tokens += outcome.stats.num_tokens
            yield outcome
    finally:
        under_way.release()


def _report(arguments: argparse.Namespace, batch: Batch, survey: Survey, num_done: int) -> None:
    """Report the result. `num_done` is counted in the file, since a signal may come between an answer and its count."""
    stats = batch.stats
    if not arguments.quiet and stats.num_tokens:
        print(stats, file=sys.stderr)
    if batch.num_errors:
        print(f"{batch.num_errors} of {batch.num_texts} texts failed: their answers say why", file=sys.stderr)
    if num_done < survey.num_lines:
        left = "the same command goes on with the others"
        print(f"{num_done} of {survey.num_lines} answers are in {arguments.output}: {left}", file=sys.stderr)
    elif not arguments.quiet:
        print(f"all {survey.num_lines} answers are in {arguments.output}", file=sys.stderr)
