"""`specllama generate`: text on stdout, statistics on stderr."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from specllama.commands import arguments as common

if TYPE_CHECKING:
    from specllama import Llama
    from specllama.commands import Subparsers


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the command."""
    parser = subparsers.add_parser(
        "generate",
        help="generate text, with a draft model or without",
        description="Generate text. It goes to stdout as it comes, the statistics go to stderr.",
    )
    parser.add_argument("--prompt", "-p", required=True, metavar="TEXT", help="the prompt; - reads it from stdin")
    parser.add_argument("--max-tokens", "-n", type=int, default=128, metavar="N", help="default 128")
    parser.add_argument("--chat", action="store_true", help="the prompt is a user's message: use the chat template")
    parser.add_argument("--json", action="store_true", help="print one object: text, tokens, finish_reason and stats")
    common.add_model_arguments(parser)
    common.add_sampling_arguments(parser)
    common.add_server_sampling_arguments(parser)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Generate; on Ctrl-C keep what is there."""
    prompt = read_prompt(arguments.prompt)
    if arguments.max_tokens < 1:
        raise ValueError(f"--max-tokens is {arguments.max_tokens}: give the number of tokens wanted, at least 1")
    llm = common.load_llama(arguments)
    with contextlib.closing(llm):
        generation = Generation(llm)
        interrupted: KeyboardInterrupt | None = None
        try:
            options = {**common.sampling_options(arguments), **common.server_sampling_options(arguments)}
            for text in generation.stream(prompt, chat=arguments.chat, max_tokens=arguments.max_tokens, **options):
                if not arguments.json:
                    print(text, end="", flush=True)
        except KeyboardInterrupt as error:
            interrupted = error
            generation.finish_reason = "interrupted"
        if arguments.json:
            print(json.dumps(generation.to_dict(), ensure_ascii=False))
        else:
            print(flush=True)
            print(llm.stats, file=sys.stderr)
    if interrupted is not None:
        raise interrupted
    return 0


def read_prompt(argument: str) -> str:
    """Return the prompt itself, or all of stdin for "-", without the newline that ends it."""
    return sys.stdin.read().removesuffix("\n") if argument == "-" else argument


class Generation:
    """One answer as it grows: its text, and why it ended."""

    def __init__(self, llm: Llama) -> None:
        self._llm = llm
        self.text = ""
        self.finish_reason: str | None = None

    def stream(self, prompt: str, *, chat: bool, **options: Any) -> Iterator[str]:
        """Yield the pieces of the answer to `prompt`. `options` go to the completion."""
        if chat:
            messages = [{"role": "user", "content": prompt}]
            chunks = self._llm.create_chat_completion(messages, stream=True, **options)
        else:
            chunks = self._llm.create_completion(prompt, stream=True, **options)
        for chunk in chunks:
            choice = chunk["choices"][0]
            piece = choice["delta"].get("content") if chat else choice["text"]
            self.finish_reason = choice["finish_reason"] or self.finish_reason
            if piece:
                self.text += piece
                yield piece

    @property
    def tokens(self) -> list[int]:
        """The ids of the generated tokens; the one that ended the text is among them."""
        stats = self._llm.stats
        first = stats.num_prompt_tokens
        return [int(token) for token in self._llm.input_ids[first : first + stats.num_tokens]]

    def to_dict(self) -> dict[str, Any]:
        """The object that --json prints."""
        return {
            "text": self.text,
            "tokens": self.tokens,
            "finish_reason": self.finish_reason,
            "stats": self._llm.stats.to_dict(),
        }
