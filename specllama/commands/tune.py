"""`specllama tune`: measures thoroughly what batches cost on this machine, and keeps the result."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from specllama.commands import arguments as common

if TYPE_CHECKING:
    from specllama.commands import Subparsers
    from specllama.commands.steps import Steps
    from specllama.evidence.tune.choices import TuneResult

_REPEATS = 3  # of each batch with llama.cpp's kernels: few, since these costs are only shown
_THEIRS = "target, kernels off"


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the command."""
    parser = subparsers.add_parser(
        "tune",
        help="measure what batches cost here, and keep it",
        description="Measure what decoding a batch of n tokens costs the target and the draft, and show how many "
        "drafted tokens follow from it. Every run learns these costs by itself. Measured beforehand they are more "
        "exact, and known from the first token on. They are kept in the cache directory for these files and settings, "
        "so use the threads and GPU layers with which you generate, and let nothing else run. If specllama's kernels "
        "multiply the target's weights, llama.cpp's kernels are measured, too, for comparison. Takes some minutes.",
    )
    parser.add_argument(
        "--output", "-o", choices=("md", "json"), default="md", help="the format, default md; json has all samples"
    )
    common.add_max_draft_tokens(common.add_models(parser))
    common.add_context_arguments(parser)
    parser.set_defaults(lookup_corpus=None, num_draft_tokens=None, verify=None)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Measure, and print the result."""
    from specllama.commands.steps import errors_reported, steps
    from specllama.engine import LOOKUP
    from specllama.evidence import tune
    from specllama.evidence.tune.report import to_text

    with steps() as progress:
        progress.note("loading")
        with contextlib.closing(common.load_llama(arguments, draft_if_none=LOOKUP)) as llm:
            result = tune.run(llm, on_progress=_reporting_to(progress))
            have_kernels = bool(llm.engine.model.settings.kernels.instruction_set)
        try:
            if have_kernels:  # the first Llama is closed before, since two may not fit into memory
                with errors_reported("llama.cpp's own kernels cannot be measured"):
                    result = _with_llama_cpps_kernels(arguments, result, progress)
        finally:  # after Ctrl-C, only the comparison is missing
            progress.stop()
            found = json.dumps(result.to_dict(), allow_nan=False) if arguments.output == "json" else to_text(result)
            print(found, flush=True)
    return 0


def _with_llama_cpps_kernels(arguments: argparse.Namespace, result: TuneResult, progress: Steps) -> TuneResult:
    """Add T(n) of the target with llama.cpp's own kernels to the result."""
    from specllama import Llama
    from specllama.cost_curve import measure_cost_curve
    from specllama.engine import LOOKUP

    progress.note("loading the target with llama.cpp's kernels")
    options = {**common.context_options(arguments), "kernels": "off"}
    show = _reporting_to(progress)
    with contextlib.closing(Llama(arguments.model_path, draft_model=LOOKUP, verbose=False, **options)) as llm:
        curve = measure_cost_curve(
            llm,
            "target",
            sizes=result.curves["target"].sizes,
            repeats=_REPEATS,
            on_progress=lambda done, total: show("batches by llama.cpp's kernels", done, total),
        )
    named = dataclasses.replace(curve, name=_THEIRS)
    return dataclasses.replace(result, curves={**result.curves, _THEIRS: named})


def _reporting_to(progress: Steps) -> Callable[[str, int, int], None]:
    """A function that shows the progress. Each part has its own speed, and is named when it begins."""
    from specllama.commands.steps import in_tenths

    report = in_tenths(progress)

    def show(step: str, done: int, total: int) -> None:
        if done == 1:
            progress.note(f"measuring {step}")
        report(step, done, total)

    return show
