"""`specllama bench`: measures what a draft gains, as ratios to plain decoding of the same prompts."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from specllama.commands import arguments as common

if TYPE_CHECKING:
    from specllama.commands import Subparsers
    from specllama.commands.steps import Steps
    from specllama.evidence.bench import BenchResult, Plan, Run
    from specllama.evidence.bench.gains import AgainstResult, Call
    from specllama.prompts import Prompt

    _R = TypeVar("_R", BenchResult, AgainstResult)


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the command."""
    parser = subparsers.add_parser(
        "bench",
        help="measure what the draft gains",
        description="Compare modes of decoding with plain decoding. They take turns on every prompt in one process, "
        "and a mode's figure is its ratio to plain decoding on the same prompt. Decoding is greedy by default. With "
        "--temp above 0, the rule auto is coupled if there is a --seed, and block if there is none. The result goes "
        "to stdout as a table that can be pasted into an issue, progress goes to stderr, and Ctrl-C prints what is "
        "there so far.",
    )
    group = parser.add_argument_group("what is measured")
    group.add_argument(
        "--prompts",
        type=Path,
        action="append",
        metavar="FILE",
        help="a file of prompts: JSON lines (.jsonl) of HumanEval, of Spec-Bench or with a `prompt` in each, or a text "
        "file with one prompt; may be repeated. Default: 24 prompts of eight kinds that come with specllama",
    )
    group.add_argument(
        "--limit", type=common.whole(1), metavar="N", help="use only the first N prompts of each category"
    )
    common.add_max_tokens(group, 128, of="per answer")
    group.add_argument(
        "--modes",
        metavar="LIST",
        help="modes with commas between them: plain, auto (as the models' options say), or RULE or RULE:GAMMA with a "
        "rule of --verify, such as rejection:4,block:4; default plain,auto. plain is always among them",
    )
    group.add_argument(
        "--repeat",
        type=common.whole(1),
        default=1,
        metavar="R",
        help="answers of each mode to each prompt, default 1",
    )
    group.add_argument(
        "--against",
        choices=("llama_cpp",),
        help="compare with llama_cpp.Llama instead: whole calls, prompts included, each class in a process of its own "
        "(both hold the model in memory). It takes three calls for each prompt: --limit 1 -n 64 is six times as fast. "
        "The output is md or json",
    )
    group.add_argument(
        "--acceptance",
        type=_probabilities,
        metavar="LIST",
        help="measure a synthetic draft in place of --draft-model. Its tokens are accepted with these probabilities, "
        "such as 0.8,0.7,0.6: one for each place in a round, given that the places before were accepted. Further "
        "places have the last one. Modes are RULE:GAMMA, default auto:1,auto:2,auto:4,auto:8",
    )
    group.add_argument(
        "--draft-cost",
        type=float,
        metavar="X",
        help="with --acceptance: the time of a drafted token, over that of a token of plain decoding, default 0",
    )
    group.add_argument("--curve", action="store_true", help="also measure what a batch of 1 to 16 tokens costs")
    group = parser.add_argument_group("what is written")
    formats = ("md", "csv", "json", "jsonl")
    group.add_argument(
        "--output",
        "-o",
        choices=formats,
        default="md",
        help="the format, default md; csv has the summary, jsonl has every run, and json has everything",
    )
    group.add_argument(
        "--report",
        type=Path,
        metavar="DIR",
        help="also write report.html and its charts into this folder (this measures --curve, too, and needs "
        "specllama[plot])",
    )
    common.add_model_arguments(parser)
    common.add_sampling_arguments(parser)
    parser.set_defaults(temperature=0.0)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Measure. The results so far are printed also after an error or Ctrl-C."""
    from specllama.commands.steps import steps
    from specllama.engine import LOOKUP
    from specllama.evidence.bench import Bench, Plan
    from specllama.prompts import builtin_prompts, limited

    with common.usage_checked():
        plan = Plan.checked(
            None if arguments.modes is None else arguments.modes.split(","),
            acceptance=arguments.acceptance,
            draft_cost=arguments.draft_cost,
            repeat=arguments.repeat,
            max_tokens=arguments.max_tokens,
            curve=arguments.curve or arguments.report is not None,
            **common.sampling_options(arguments),
        )
    if plan.synthetic is None and arguments.draft_model is None:
        raise common.UsageError("the following arguments are required: --draft-model/-md (or --acceptance)")
    others = (arguments.draft_model, arguments.lookup_corpus, arguments.against)
    if plan.synthetic is not None and any(given is not None for given in others):
        raise common.UsageError(
            "--acceptance is of a synthetic draft: leave --draft-model, --lookup-corpus and --against out"
        )
    if arguments.against is not None and (plan.curve or arguments.output in ("csv", "jsonl")):
        raise common.UsageError("--against has neither a --curve nor a --report, and is written as md or json")
    prompts, problems = common.read_prompts(arguments.prompts or ())
    if not arguments.prompts:
        prompts = builtin_prompts()
    if arguments.limit is not None:
        prompts = limited(prompts, arguments.limit)
    if arguments.against is not None:
        return _against(prompts, problems, plan, arguments)
    if arguments.report is not None:
        from specllama.evidence.bench.page import require_folder, require_plotting

        require_plotting()
        require_folder(arguments.report)
    with steps() as progress:
        for problem in problems:
            progress.note(problem)
        progress.note("loading")
        llm = common.load_pair(arguments, draft_if_none=LOOKUP)
        with contextlib.closing(llm):
            bench = Bench(llm, prompts, plan)
            try:
                bench.run(_reporting_to(progress, len(plan.modes)), progress.note)
            finally:
                progress.stop()
                if bench.runs:
                    _write(_signed(bench.result(), arguments, problems), arguments)
    return 0


def _probabilities(text: str) -> list[float]:
    return [float(number) for number in text.split(",")]


_probabilities.__name__ = "list of numbers"  # argparse's name of the type


def _against(prompts: list[Prompt], problems: list[str], plan: Plan, arguments: argparse.Namespace) -> int:
    """Compare with llama_cpp's own class. The results so far are printed also after an error or Ctrl-C."""
    import json

    from specllama.commands.steps import steps
    from specllama.evidence.bench.against import Against

    theirs, ours = common.both_classes(arguments)
    against = Against(prompts, plan, theirs=theirs, ours=ours)
    with steps() as progress:
        for problem in [*problems, "loading"]:
            progress.note(problem)
        try:
            against.run(_reporting_to(progress, len(plan.modes) + 1), progress.note)
        finally:
            progress.stop()
            if against.calls:
                result = _signed(against.result(), arguments, problems)
                text = result.to_markdown() if arguments.output == "md" else json.dumps(result.to_dict(), indent=2)
                print(text, flush=True)
    return 0


def _reporting_to(progress: Steps, num_modes: int) -> Callable[[Run | Call, int, int], None]:
    """A function that shows each run. Without a bar, it prints one line for all modes of a prompt."""
    turn: list[Run | Call] = []

    def on_run(run: Run | Call, done: int, total: int) -> None:
        # A call of the previous turn has failed, so that turn never becomes complete.
        if turn and (turn[0].prompt_id, turn[0].repeat) != (run.prompt_id, run.repeat):
            turn.clear()
        turn.append(run)
        line = None
        if len(turn) == num_modes:
            line = f"{run.prompt_id}: " + ", ".join(f"{one.mode} {one.tokens_per_second:.2f} t/s" for one in turn)
            turn.clear()
        progress.done(run.prompt_id, done, total, line)

    return on_run


def _signed(result: _R, arguments: argparse.Namespace, problems: list[str]) -> _R:
    """Add the command line to the result. Users publish results, so names of home folders are left out."""
    from specllama.evidence.machine import without_home

    words: Sequence[str] = arguments.command_line
    command = " ".join(["specllama", *(_quoted(without_home(word)) for word in words)])
    notes = [without_home(note) for note in [*problems, *result.notes]]
    return dataclasses.replace(result, settings={"command": command, **result.settings}, notes=notes)


def _quoted(word: str) -> str:
    # A shell expands ~ only if it is not quoted.
    return "~/" + shlex.quote(word[2:]) if word.startswith("~/") else shlex.quote(word)


def _write(result: BenchResult, arguments: argparse.Namespace) -> None:
    from specllama.evidence.bench.report import FORMATS
    from specllama.evidence.tables import curves_table

    print(FORMATS[arguments.output](result), flush=True)
    if arguments.output in ("csv", "jsonl"):  # these formats have no place for curves and notes
        if result.curves:
            print(curves_table(result.curves), file=sys.stderr)
        for note in result.notes:
            print(f"note: {note}", file=sys.stderr)
    if arguments.report is not None and result.summary:
        from specllama.evidence.bench import write_report

        print(f"report: {write_report(result, arguments.report)}", file=sys.stderr)
