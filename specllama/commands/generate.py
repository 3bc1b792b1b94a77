"""`specllama generate`: writes text to stdout, and statistics to stderr."""

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
    add_prompt(parser)
    common.add_max_tokens(parser, 128)
    parser.add_argument("--chat", action="store_true", help="the prompt is a user's message: use the chat template")
    parser.add_argument("--json", action="store_true", help="print one object: text, tokens, finish_reason and stats")
    parser.add_argument("--stats", action="store_true", help="all statistics on stderr, not one line of them")
    common.add_model_arguments(parser)
    common.add_earlier_texts(parser)
    common.add_learning(parser)
    common.add_sampling_arguments(parser)
    common.add_server_sampling_arguments(parser)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Generate. On Ctrl-C and SIGTERM, the text so far is kept."""
    from rich.console import Console

    from specllama.commands.terminal import print_piece

    prompt = read_prompt(arguments.prompt)
    out = Console(highlight=False)
    llm = common.load_llama(arguments)
    with contextlib.closing(llm):
        generation = Generation(llm)
        interrupted: BaseException | None = None
        try:
            for text in generation.stream(prompt, chat=arguments.chat, **common.completion_options(arguments)):
                if not arguments.json:
                    print_piece(out, text)
        except (KeyboardInterrupt, SystemExit) as error:
            interrupted = error
            generation.finish_reason = "interrupted"
        if arguments.json:
            print(json.dumps(generation.to_dict(), ensure_ascii=False))
        else:
            print(flush=True)
            if generation.finish_reason == "length":
                print(_cut_off(llm, arguments.max_tokens), file=sys.stderr)
            print(llm.stats if arguments.stats else llm.stats.summary, file=sys.stderr)
    if interrupted is not None:
        raise interrupted
    return 0


def _cut_off(llm: Llama, max_tokens: int | None) -> str:
    num_tokens = llm.stats.num_tokens
    if max_tokens is not None and num_tokens >= max_tokens:
        return f"cut off at {num_tokens} tokens: a larger --max-tokens lets the answer go on"
    return f"cut off at {num_tokens} tokens: the context of {llm.n_ctx()} tokens is full, see --ctx-size"


def add_prompt(parser: argparse.ArgumentParser) -> None:
    """Add the option for the prompt, which `read_prompt` reads."""
    parser.add_argument(
        "--prompt",
        "-p",
        type=common.utf8_text,
        required=True,
        metavar="TEXT",
        help="the prompt; - reads it from stdin",
    )


def read_prompt(argument: str) -> str:
    """The prompt: the argument, or all of stdin if it is "-". The newline at the end of stdin is removed.

    Raises:
        ValueError: stdin is not UTF-8.
    """
    return common.checked_text(sys.stdin.read().removesuffix("\n")) if argument == "-" else argument


class Generation:
    """One answer while it is generated.

    Attributes:
        text: the text so far.
        finish_reason: why the text ended; None until it ends.
    """

    def __init__(self, llm: Llama) -> None:
        self._llm = llm
        self.text = ""
        self.finish_reason: str | None = None
        self._is_thinking = False

    def stream(self, prompt: str, *, chat: bool, **options: Any) -> Iterator[str]:
        """Yield the answer to `prompt` in pieces. `options` are arguments of the completion."""
        if chat:
            messages = [{"role": "user", "content": prompt}]
            chunks = self._llm.create_chat_completion(messages, stream=True, **options)
        else:
            chunks = self._llm.create_completion(prompt, stream=True, **options)
        for chunk in chunks:
            choice = chunk["choices"][0]
            piece = self._text_of(choice["delta"]) if chat else choice["text"]
            self.finish_reason = choice["finish_reason"] or self.finish_reason
            if piece:
                self.text += piece
                yield piece

    def _text_of(self, delta: dict[str, Any]) -> str:
        """The text of a chunk. Thoughts are shown, too, with an empty line between them and the answer."""
        thought, content = delta.get("reasoning_content", ""), delta.get("content") or ""
        self._is_thinking = self._is_thinking or bool(thought)
        if self._is_thinking and content:
            self._is_thinking = False
            return f"{thought}\n\n{content}"
        return str(thought + content)

    @property
    def tokens(self) -> list[int]:
        """The ids of the generated tokens, including the token that ended the text."""
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
