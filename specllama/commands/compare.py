"""`specllama compare`: shows plain and speculative decoding of one prompt side by side."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from typing import TYPE_CHECKING

from specllama.commands import arguments as common
from specllama.commands.generate import add_prompt, read_prompt

if TYPE_CHECKING:
    from specllama.commands import Subparsers


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the command."""
    parser = subparsers.add_parser(
        "compare",
        help="watch plain and speculative decoding of one prompt, side by side",
        description="Decode a prompt plainly and speculatively, and show both, with their tokens coloured by where "
        "they came from. Both start from empty caches; speeds leave out the prompt.",
    )
    add_prompt(parser)
    common.add_max_tokens(parser, 128)
    parser.add_argument("--chat", action="store_true", help="the prompt is a user's message: use the chat template")
    parser.add_argument(
        "--against",
        choices=("llama_cpp",),
        help="also measure whole calls, prompt included, of llama_cpp.Llama and of specllama.Llama, each in a process "
        "of its own (both hold the model in memory)",
    )
    parser.add_argument("--json", action="store_true", help="print one object with both texts and their statistics")
    common.add_model_arguments(parser, pair=True)
    common.add_sampling_arguments(parser, "the seed of both ways, default 1; with it both write the same text")
    parser.set_defaults(seed=1)
    return parser


def run(arguments: argparse.Namespace, models: str = "") -> int:
    """Decode in both ways, and show the texts.

    `models` names the models in the report. If it is empty, the report has the names of the files.
    """
    from rich.console import Console

    from specllama.commands.side_by_side import report, report_gain, show
    from specllama.evidence import compare
    from specllama.evidence.neighbours import Neighbours
    from specllama.prompts import Prompt

    prompt = Prompt("prompt", "text", read_prompt(arguments.prompt), chat=arguments.chat)
    out = Console(highlight=False)
    if arguments.against is not None and arguments.json:
        raise common.UsageError("--against prints a line of text: leave out --json")
    options = {"max_tokens": arguments.max_tokens, **common.sampling_options(arguments)}
    with contextlib.closing(common.load_pair(arguments)) as llm:
        if arguments.json:
            print(json.dumps(compare.run(llm, prompt, **options).to_dict()))
        else:
            neighbours = Neighbours()
            report(out, show(out, llm, prompt, **options), models, neighbours.remark(llm.n_threads))
    if arguments.against is not None:
        print("the same prompt with llama_cpp.Llama, in a process of its own", file=sys.stderr, flush=True)
        report_gain(out, prompt, *common.both_classes(arguments), **options)
    return 0
