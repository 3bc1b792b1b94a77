"""`specllama verify`: proof that a draft changes neither texts nor probabilities, on the user's own pair."""

from __future__ import annotations

import argparse
import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from specllama.commands import arguments as common

if TYPE_CHECKING:
    from specllama.commands import Subparsers
    from specllama.commands.steps import Steps
    from specllama.prompts import Prompt


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the command."""
    parser = subparsers.add_parser(
        "verify",
        help="prove on your own models that the draft changes nothing",
        description="Verify that a draft changes nothing but speed. Texts with the draft are compared with those "
        "without it, greedy and sampled with seeds, and where one differs, decoding outside the loop says whether "
        "rounding explains it. Then pairs of next tokens are sampled and tested against the target's exact "
        "probabilities. Takes some minutes. The exit code is 0 if all hold, else 1.",
    )
    group = parser.add_argument_group("what is verified (--verify RULE samples under that rule only)")
    group.add_argument(
        "--prompts",
        type=Path,
        action="append",
        metavar="FILE",
        help="prompts as for `specllama bench`; may be repeated. Default: some that come with specllama",
    )
    group.add_argument("--num-prompts", type=int, default=4, metavar="N", help="of these, default 4")
    group.add_argument("--max-tokens", "-n", type=int, default=32, metavar="N", help="of each text, default 32")
    group.add_argument(
        "--samples", type=int, default=200, metavar="N", help="for each context and rule, default 200; more see more"
    )
    group.add_argument("--num-contexts", type=int, default=2, metavar="N", help="to sample in, default 2")
    parser.add_argument("--json", action="store_true", help="print one object, with every difference and test")
    common.add_pair_arguments(parser)
    common.add_sampling_arguments(parser, seed="of the texts, with N + 1, and of the samples; default 1")
    parser.set_defaults(seed=1)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Verify, and print what was found."""
    from specllama import verify
    from specllama.commands.steps import shown_in_tenths, steps
    from specllama.verify.report import to_text

    rules = ("rejection", "block") if arguments.verify in (None, "auto") else (arguments.verify,)
    sampling = common.sampling_options(arguments)
    seed = sampling.pop("seed")
    with steps() as progress:
        prompts = _prompts(arguments.prompts, progress)
        with contextlib.closing(common.load_pair(arguments)) as llm:
            result = verify.run(
                llm,
                prompts,
                num_prompts=arguments.num_prompts,
                seeds=(seed, seed + 1),
                max_tokens=arguments.max_tokens,
                samples=arguments.samples,
                num_contexts=arguments.num_contexts,
                rules=rules,
                on_progress=shown_in_tenths(progress),
                **sampling,
            )
    print(json.dumps(result.to_dict(), allow_nan=False) if arguments.json else to_text(result))
    return 0 if result.passed else 1


def _prompts(paths: list[Path] | None, progress: Steps) -> list[Prompt] | None:
    """The prompts of all files; None if none was named."""
    if not paths:
        return None
    from specllama.prompts import read_prompts

    prompts = []
    for path in paths:
        found, problems = read_prompts(path)
        prompts += found
        for problem in problems:
            progress.note(f"skipped {problem}")
    return prompts
