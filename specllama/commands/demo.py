"""`specllama demo`: runs `specllama compare` with the default pair of models, in types that suit this machine."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, NamedTuple

from specllama.commands import compare
from specllama.commands.arguments import add_max_tokens, add_num_draft_tokens, add_threads, utf8_text
from specllama.models import FILE_TYPES, Model, known_models

if TYPE_CHECKING:
    from specllama.commands import Subparsers

_PROMPT = (
    "Write a Python function `merge_intervals(intervals)` that merges overlapping intervals, "
    "with type hints, a docstring and three assertions that test it."
)
# Bytes for the context, compute buffers and Python, besides the weights of both models.
_MEMORY_ROOM = int(1.2e9)


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the command."""
    parser = subparsers.add_parser(
        "demo",
        help="see what a draft model does, on this machine",
        description="Fetch the default pair of models unless it is here, decode one prompt plainly and "
        "speculatively, and show both with their tokens per second.",
    )
    parser.add_argument(
        "--prompt", "-p", type=utf8_text, metavar="TEXT", help="a user's message; - reads it from stdin"
    )
    add_max_tokens(parser, 128)
    parser.add_argument(
        "--temp", dest="temperature", type=float, default=0.0, metavar="T", help="the temperature, default 0 (greedy)"
    )
    add_num_draft_tokens(parser)
    add_threads(parser, "threads, default: what suits this machine")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Fetch the models, and compare."""
    import llama_cpp
    import psutil

    from specllama.backend.prepare import prepare_backend
    from specllama.models import pull_model

    models = known_models()
    target, draft = (models.find(name) for name in (models.default_target, models.default_draft))
    for model in (target, draft):
        pull_model(model.name)
    gpu = bool(llama_cpp.llama_supports_gpu_offload())
    kernels = bool(prepare_backend().kernels.instruction_set)
    pair = choose_pair(target, draft, gpu=gpu, kernels=kernels, memory=psutil.virtual_memory().available)
    _say(pair.reason)
    line = ["-m", _in_type(target, pair.target_type), "-md", _in_type(draft, pair.draft_type), "-c", "2048", "--chat"]
    line += [
        "-n",
        str(arguments.max_tokens),
        f"--temp={arguments.temperature}",
        "--against",
        "llama_cpp",
        "-p",
        _PROMPT,
    ]
    line += ["-ngl", "-1"] if gpu else []
    compared = compare.add_parser(argparse.ArgumentParser().add_subparsers()).parse_args(line)
    compared.prompt = compared.prompt if arguments.prompt is None else arguments.prompt
    compared.n_threads, compared.num_draft_tokens = arguments.n_threads, arguments.num_draft_tokens
    _say(f"loading {target.title} and its draft {draft.title}")
    return compare.run(compared, f"{target.title} {pair.target_type}, draft {draft.title} {pair.draft_type}")


class Pair(NamedTuple):
    """The types of target and draft to run, and the reason for them."""

    target_type: str
    draft_type: str
    reason: str


def choose_pair(target: Model, draft: Model, *, gpu: bool, kernels: bool, memory: int) -> Pair:
    """Choose types of the weights that let speculation show its gain on this machine.

    Speculation pays where decoding mostly waits for weights to be read. So it is with 4-bit weights on a GPU, and on a
    CPU with our kernels. A CPU without our kernels spends most of the time computing. For such a CPU a type with more
    bits is chosen, which behaves like the larger models that people use drafts for.

    Args:
        target: the catalog's target.
        draft: the catalog's draft.
        gpu: whether llama.cpp can use a GPU.
        kernels: whether our kernels run on this CPU.
        memory: the bytes of memory that are available without swapping.
    """
    if gpu:
        reason = f"llama.cpp can use a GPU here: {target.type} weights, all layers on the GPU"
        return Pair(target.type, draft.type, reason)
    if kernels:
        return Pair(target.type, "Q4_0", f"{target.type} weights, which our kernels multiply")
    wanted = []
    for file_type in ("F16", "Q8_0"):
        size = int(target.size * FILE_TYPES[file_type] / FILE_TYPES[target.type])
        needed = size + draft.size + _MEMORY_ROOM
        wanted.append(f"{file_type} needs {needed / 1e9:.1f} GB")
        if memory >= needed:
            reason = f"{file_type} weights: on a CPU, a draft pays where reading the weights takes the time"
            return Pair(file_type, "Q4_0", reason)
    reason = f"{target.type} weights, on which a CPU gains little: {', '.join(wanted)} of free memory"
    return Pair(target.type, "Q4_0", reason)


def _in_type(model: Model, file_type: str) -> str:
    """The path of a model with weights of a type. The first run makes the file."""
    if file_type == model.type:
        return str(model.path)
    path = model.variant_path(file_type)
    if not path.is_file():
        from specllama.commands.quantize import make

        _say(f"making {model.name}:{file_type} from {model.file} (once; it is kept in {path.parent})")
        make(model.name, file_type)
    return str(path)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
