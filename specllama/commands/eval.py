"""`specllama eval`: compares how many answers are right with a draft and without one."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specllama.commands import arguments as common

if TYPE_CHECKING:
    from specllama.commands import Subparsers
    from specllama.commands.steps import Steps
    from specllama.evidence.eval import Record
    from specllama.evidence.eval.evaluation import Grader
    from specllama.prompts import Prompt

_REFUSAL = """\
specllama: HumanEval executes code that a model wrote, and that code can be wrong in any way.
Each program runs in a process of its own, in a temporary folder, with limits on time and memory. It is no security
boundary: the code runs with your rights, so it can read and change your files and use your network.
If that is what you want, on a machine where it may happen, add --allow-code-execution."""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the command, with a subcommand for each experiment."""
    parser = subparsers.add_parser(
        "eval",
        help="see whether answers are as often right with a draft as without",
        description="Answer the same questions plainly and speculatively, and compare how many answers are right.",
    )
    experiments = parser.add_subparsers(title="experiments", metavar="EXPERIMENT", required=True)
    _add_multiply(experiments)
    _add_humaneval(experiments)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Run the experiment that was named."""
    return int(arguments.experiment(arguments))


def _add_multiply(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "multiply",
        help="small multiplications, sampled",
        description="Ask small multiplications as chats, and compare how many answers are right with plain and with "
        "speculative decoding. Answers are independent samples, at temperature 1 by default. One --seed always asks "
        "the same questions.",
    )
    parser.add_argument("--count", type=common.whole(1), default=200, metavar="N", help="questions, default 200")
    parser.add_argument(
        "--digits",
        type=_shapes,
        default=_shapes("2x1,2x2"),
        metavar="AxB,...",
        help="the digits of the factors, default 2x1,2x2",
    )
    _add_common(parser, max_tokens=32)
    parser.set_defaults(experiment=_multiply, temperature=1.0)


def _add_humaneval(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "humaneval",
        help="HumanEval's programming tasks (executes generated code)",
        description="Let the model solve each task once plainly and once speculatively, run the tests, and compare "
        "pass@1. The temperature is 0.2 by default. This executes code that a model wrote: with "
        "limits on time and memory, but with your rights.",
    )
    parser.add_argument(
        "--prompts",
        type=Path,
        required=True,
        metavar="FILE",
        help="HumanEval as JSON lines: HumanEval.jsonl.gz of github.com/openai/human-eval (data/), unpacked",
    )
    parser.add_argument("--limit", type=common.whole(1), metavar="N", help="only the first N tasks")
    parser.add_argument(
        "--allow-code-execution", action="store_true", help="required: allow that code of the model is executed"
    )
    parser.add_argument(
        "--time-limit", type=float, default=10.0, metavar="S", help="seconds for each program, default 10"
    )
    parser.add_argument(
        "--memory-limit",
        type=common.whole(1),
        default=1024,
        metavar="MB",
        help="megabytes for each program, default 1024",
    )
    _add_common(parser, max_tokens=512)
    parser.set_defaults(experiment=_humaneval, temperature=0.2)


def _add_common(parser: argparse.ArgumentParser, max_tokens: int) -> None:
    common.add_max_tokens(parser, max_tokens, of="of an answer")
    parser.add_argument("--json", action="store_true", help="print one object, with every question and answer")
    common.add_model_arguments(parser, pair=True)
    common.add_sampling_arguments(
        parser, "the seed of the run, default 0; every answer is a sample with a seed derived from it"
    )
    parser.set_defaults(seed=0, verify="block")


def _shapes(text: str) -> list[tuple[int, int]]:
    shapes = [re.fullmatch(r"(\d)x(\d)", part.strip()) for part in text.split(",")]
    if not all(shapes):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of digits such as 2x1,2x2")
    return [(int(shape[1]), int(shape[2])) for shape in shapes if shape]


def _multiply(arguments: argparse.Namespace) -> int:
    from specllama.evidence.eval import multiplication

    with common.usage_checked():
        prompts = multiplication.questions(arguments.count, arguments.digits, arguments.seed)
    return _evaluate(arguments, multiplication.NAME, prompts, multiplication.grade)


def _humaneval(arguments: argparse.Namespace) -> int:
    if not arguments.allow_code_execution:
        print(_REFUSAL, file=sys.stderr)
        return 2
    from specllama.evidence.eval import Limits, human_eval
    from specllama.prompts import limited

    grade = human_eval.grader(Limits(seconds=arguments.time_limit, memory=arguments.memory_limit << 20))
    prompts, problems = common.read_prompts([arguments.prompts])
    for problem in problems:
        print(problem, file=sys.stderr)
    if arguments.limit is not None:
        prompts = limited(prompts, arguments.limit)
    return _evaluate(arguments, human_eval.NAME, human_eval.checked_tasks(prompts), grade)


def _evaluate(arguments: argparse.Namespace, name: str, prompts: Sequence[Prompt], grade: Grader) -> int:
    """Load the models, and ask all questions. The results so far are printed also after an error or Ctrl-C."""
    from specllama.commands.steps import steps
    from specllama.evidence.eval import Evaluation
    from specllama.evidence.eval.report import to_text

    options = {"max_tokens": arguments.max_tokens, "verify": arguments.verify, **common.sampling_options(arguments)}
    with contextlib.closing(common.load_pair(arguments)) as llm:
        evaluation = Evaluation(llm, name, prompts, grade, **options)
        try:
            with steps() as progress:
                evaluation.run(_reporting_to(progress))
        finally:
            if evaluation.records:
                result = evaluation.result()
                found = json.dumps(result.to_dict(), allow_nan=False) if arguments.json else to_text(result)
                print(found, flush=True)
    return 0


def _reporting_to(progress: Steps) -> Callable[[Record, int, int], None]:
    """A function that shows how many answers are right. Without a bar, it prints a line for every tenth of the way."""
    right = [0, 0]

    def on_answer(record: Record, done: int, total: int) -> None:
        right[0] += record.plain.grade.correct
        right[1] += record.speculative.grade.correct
        text = f"right: {right[0]} plain, {right[1]} speculative"
        is_tenth = done * 10 // total > (done - 1) * 10 // total
        progress.done(text, done, total, text if is_tenth else None)

    return on_answer
