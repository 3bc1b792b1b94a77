"""`specllama verify`: shows with the user's own models that a draft changes neither texts nor probabilities."""

from __future__ import annotations

import argparse
import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from specllama.commands import arguments as common

if TYPE_CHECKING:
    from specllama.commands import Subparsers

_UNDECIDED = 2  # the exit code if a part is undecided; 1 means that a draft has changed something


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the command."""
    parser = subparsers.add_parser(
        "verify",
        help="prove on your own models that the draft changes nothing",
        description="Verify that a draft changes nothing but speed. Texts with the draft are compared with those "
        "without it, greedy and sampled with seeds, and where one differs, decoding outside the loop says whether "
        "rounding explains it. Then pairs of next tokens are sampled and tested against the target's exact "
        "probabilities. Takes some minutes; Ctrl-C prints what was found so far. The exit code is 0 if all hold, 1 if "
        "not, and 2 if it could not be told.",
    )
    group = parser.add_argument_group("what is verified (--verify RULE samples under that rule only)")
    group.add_argument(
        "--prompt",
        "-p",
        type=common.utf8_text,
        action="append",
        metavar="TEXT",
        help="a user's message to answer; may be repeated",
    )
    group.add_argument(
        "--prompts",
        type=Path,
        action="append",
        metavar="FILE",
        help="prompts as for `specllama bench`; may be repeated. Default: some that come with specllama",
    )
    group.add_argument(
        "--num-prompts", type=common.whole(1), default=4, metavar="N", help="prompts to use of these, default 4"
    )
    common.add_max_tokens(group, 32, least=2, of="of each text")
    group.add_argument(
        "--samples",
        type=common.whole(1),
        default=200,
        metavar="N",
        help="samples for each context and rule, default 200; more of them show smaller differences",
    )
    group.add_argument(
        "--num-contexts", type=common.whole(1), default=2, metavar="N", help="contexts to sample in, default 2"
    )
    parser.add_argument("--json", action="store_true", help="print one object, with every difference and test")
    common.add_model_arguments(parser, pair=True)
    common.add_sampling_arguments(
        parser, seed="the seed of the texts and the samples, default 1; texts are sampled with N + 1, too"
    )
    parser.set_defaults(seed=1, error_code=_UNDECIDED)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Verify. The results so far are printed also after an error or Ctrl-C."""
    from specllama.commands.steps import in_tenths, steps
    from specllama.engine import DEPENDENT_ON_DRAFT, checked_seed
    from specllama.evidence.verify import Verification
    from specllama.evidence.verify.report import to_text

    rules = DEPENDENT_ON_DRAFT if arguments.verify in (None, "auto") else (arguments.verify,)
    sampling = common.sampling_options(arguments)
    seed = sampling.pop("seed")
    with steps() as progress:
        prompts, problems = common.read_prompts(arguments.prompts or ())
        for problem in problems:
            progress.note(problem)
        with contextlib.closing(common.load_pair(arguments)) as llm:
            verification = Verification(
                llm,
                [*(arguments.prompt or ()), *prompts] or None,
                num_prompts=arguments.num_prompts,
                # The second seed must not be -1, which means a random seed.
                seeds=(seed, seed + 1 if checked_seed(seed + 1) is not None else seed + 2),
                max_tokens=arguments.max_tokens,
                samples=arguments.samples,
                num_contexts=arguments.num_contexts,
                rules=rules,
                **sampling,
            )
            try:
                verification.run(in_tenths(progress))
            finally:
                progress.stop()
                result = verification.result()
                if result.texts:
                    found = json.dumps(result.to_dict(), allow_nan=False) if arguments.json else to_text(result)
                    print(found, flush=True)
    return 1 if result.problems else _UNDECIDED if result.untested else 0
