"""`specllama chat`: a conversation in the terminal, or a script of one on stdin."""

from __future__ import annotations

import argparse
import contextlib
from typing import TYPE_CHECKING

from specllama.commands import arguments as common

if TYPE_CHECKING:
    from specllama.commands import Subparsers


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the command."""
    parser = subparsers.add_parser(
        "chat",
        help="talk to a model, with a draft model or without",
        description="Talk to a model. /help lists what else can be typed; Ctrl-C stops an answer, Ctrl-D leaves. "
        "Without a terminal, stdin is a script: a message or a command on each line.",
    )
    parser.add_argument("--system", "-sys", type=common.utf8_text, metavar="TEXT", help="the system message")
    common.add_max_tokens(parser, None, of="of an answer")
    parser.add_argument("--origins", action="store_true", help="colour the tokens by where they came from, as compare")
    common.add_model_arguments(parser)
    common.add_sampling_arguments(parser)
    common.add_server_sampling_arguments(parser)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Talk until the messages end. A script exits with 1 if anything in it failed."""
    from specllama import Conversation
    from specllama.commands.chat_input import ChatInput
    from specllama.commands.chat_session import ChatSession

    options = {**common.sampling_options(arguments), **common.server_sampling_options(arguments)}
    if arguments.max_tokens is not None:
        options["max_tokens"] = arguments.max_tokens
    with contextlib.closing(common.load_llama(arguments)) as llm:
        session = ChatSession(Conversation(llm, arguments.system, **options), origins=arguments.origins)
        with ChatInput() as messages:
            if messages.is_terminal:
                session.greet()
            session.run(messages)
            return int(session.failed and not messages.is_terminal)
