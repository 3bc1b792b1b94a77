"""`specllama demo`: plain and speculative decoding of one prompt, side by side."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from specllama.commands.arguments import add_max_tokens, add_num_draft_tokens, add_threads, utf8_text
from specllama.commands.pull import fetch
from specllama.models.catalog import Model, catalog

if TYPE_CHECKING:
    from rich.console import Console

    from specllama.commands import Subparsers


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
    parser.add_argument("--temp", type=float, default=0.0, metavar="T", help="default 0, greedy")
    add_num_draft_tokens(parser)
    add_threads(parser, "default: what suits this machine")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Fetch, decode twice, compare."""
    import llama_cpp
    from rich.console import Console

    from specllama.backend.cpu import default_threads
    from specllama.commands import demo_pair
    from specllama.commands.compare import report, show
    from specllama.commands.generate import read_prompt
    from specllama.completions.chat_template import render_chat

    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    target = catalog().find(catalog().default_target)
    draft = catalog().find(catalog().default_draft)
    for model in (target, draft):
        fetch(model)
    gpu = bool(llama_cpp.llama_supports_gpu_offload())
    pair = demo_pair.choose_pair(target, draft, gpu=gpu, memory=demo_pair.available_memory())
    say(err, pair.reason)
    target_path = variant(target, pair.target_type, err)
    draft_path = variant(draft, pair.draft_type, err)
    threads = arguments.threads or default_threads()
    prompt = demo_pair.PROMPT if arguments.prompt is None else read_prompt(arguments.prompt)
    say(err, f"loading {target.title} and its draft {draft.title}, {threads} threads each for prompts and generation")

    with demo_pair.loaded_pair(target_path, draft_path, pair, threads) as llm:
        rendered = render_chat(llm, prompt)
        options = {"max_tokens": arguments.max_tokens, "temperature": arguments.temp}
        if arguments.num_draft_tokens is not None:
            options["num_draft_tokens"] = arguments.num_draft_tokens
        comparison = show(out, llm, rendered, seed=1, **options)  # with a seed both write the same text
    forms = f"{target.title} {pair.target_type or target.type}, draft {draft.title} {pair.draft_type or draft.type}"
    report(out, comparison, forms)
    return 0


def variant(model: Model, file_type: str | None, err: Console) -> str:
    """Return the path of a model in the wanted type, made on the first run."""
    if file_type is None or file_type == model.type:
        return str(model.path)
    path = model.variant_path(file_type)
    if not path.is_file():
        from specllama.commands.quantize import make

        say(err, f"making {model.name}:{file_type} from {model.file} (once; it is kept in {path.parent})")
        make(model.name, file_type)
    return str(path)


def say(console: Console, text: str) -> None:
    """Print a line as it is, without wrapping or markup."""
    console.print(text, markup=False, soft_wrap=True)
