"""`specllama serve`: runs an OpenAI-compatible server."""

from __future__ import annotations

import argparse
import contextlib
import functools
import ipaddress
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from specllama.backend.streams import show
from specllama.commands import arguments as common

if TYPE_CHECKING:
    from specllama import Llama
    from specllama.commands import Subparsers

_KEY_VARIABLE = "SPECLLAMA_API_KEY"
_CACHE_RAM = 1024  # the default of --cache-ram, in MiB
_USUAL_EMBEDDED = 2048  # the most tokens of a text to embed if --ctx-size is 0
_MOST_EMBEDDED = 8192  # with any --ctx-size: a text is one batch, whose memory grows with the square of its length
_MAX_BODY = 8 << 20  # equal to server.request_limits.MAX_BODY, which cannot be imported without the extra `server`


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the command."""
    parser = subparsers.add_parser(
        "serve",
        help="serve a model, with its draft, to OpenAI's clients and to the browser",
        description="Serve completions and chat at /v1, a page to try them at /, /health and Prometheus' /metrics, "
        "until SIGTERM (exit code 0) or Ctrl-C.",
    )
    common.add_model_arguments(parser)
    common.add_earlier_texts(parser, ram=_CACHE_RAM)
    common.add_learning(parser)
    group = parser.add_argument_group("server")
    group.add_argument(
        "--mmproj",
        dest="clip_model_path",
        type=Path,
        metavar="FILE",
        help="the model's part that reads images; with it, chats may have images",
    )
    group.add_argument(
        "--alias",
        dest="model_alias",
        type=common.utf8_text,
        metavar="NAME",
        help="the model's name in answers; default: its file's name",
    )
    group.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on, default 127.0.0.1: this machine only"
    )
    group.add_argument(
        "--port",
        type=common.whole(0, 65535),
        default=8000,
        metavar="N",
        help="the port, default 8000; 0 for any free one",
    )
    group.add_argument(
        "--api-key",
        type=common.utf8_text,
        metavar="KEY",
        help=f"the key that clients must send; default: the variable {_KEY_VARIABLE}, or no key if it is not set",
    )
    group.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        dest="allowed_hosts",
        metavar="NAME",
        help="a further name or address under which clients may call the server, and whose web pages may use it; "
        "--host and loopback addresses are always allowed; may be repeated; * allows all",
    )
    group.add_argument(
        "--max-waiting",
        type=common.whole(0),
        default=16,
        metavar="N",
        help="requests that may wait; others get 503 (default 16)",
    )
    common.add_parallel(group, default=1, of="requests answered")
    group.add_argument(
        "--share-lookups",
        action="store_true",
        help="let the draft look up earlier answers to all clients: 16,384 tokens, in memory only. A client may "
        "conclude from response times what others were told",
    )
    group.add_argument(
        "--embedding-model",
        metavar="FILE",
        help="a second model, for /v1/embeddings: its name or file. Its texts have --ctx-size tokens at most, "
        f"{_MOST_EMBEDDED} and what it was trained with",
    )
    group.add_argument(
        "--log",
        action="store_true",
        help="write a line for each request to stderr: path, status, tokens, times; never a text",
    )
    group.add_argument(
        "--max-body",
        type=common.whole(1),
        default=_MAX_BODY,
        metavar="BYTES",
        help=f"the longest body of a request; longer ones get 413 (default {_MAX_BODY})",
    )
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal ends it."""
    try:
        from specllama.drop_in import give_image_handler
        from specllama.server import bound_socket, create_app
        from specllama.server import serve as serve_until_signal
        from specllama.server.hosts import checked_host
        from specllama.server.log import log_to_stderr
        from specllama.server.serving import give_back_freed_memory
    except ModuleNotFoundError as error:
        raise ImportError(f'the server needs {error.name}: pip install "specllama[server]"') from error
    if arguments.cache_tokens is not None and arguments.max_parallel == 1:
        raise common.UsageError("--cache-tokens is for several requests at once: give --parallel, too, or leave it out")
    api_key = arguments.api_key if arguments.api_key is not None else os.environ.get(_KEY_VARIABLE)
    host, *hosts = [checked_host(host) for host in (arguments.host, *arguments.allowed_hosts)]
    if arguments.log:
        log_to_stderr()
    give_back_freed_memory()
    with contextlib.closing(bound_socket(arguments.host, arguments.port)) as bound:
        llm = common.load_llama(arguments)
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.closing(llm))
            stack.enter_context(common.learning_meanwhile(llm))
            if arguments.clip_model_path is not None:
                give_image_handler(llm, arguments.clip_model_path)
            embedder = None
            if arguments.embedding_model is not None:
                embedder = stack.enter_context(_opened_embedder(arguments))
            name = arguments.model_alias or Path(arguments.model_path).name
            app = create_app(
                llm,
                name=name,
                api_key=api_key,
                max_waiting=arguments.max_waiting,
                max_parallel=arguments.max_parallel,
                allowed_hosts=hosts,
                host=host,
                max_body=arguments.max_body,
                embedder=embedder,
            )
            announce = functools.partial(_announce, name, bound, has_key=api_key is not None)
            try:
                serve_until_signal(app, bound, lambda text: show(f"{text}\n"), announce)
            finally:
                for worker in {app.state.worker, app.state.embedding_worker}:
                    worker.shut_down()
                    worker.close()  # now, since the end of the block frees the model
    return 0


def _opened_embedder(arguments: argparse.Namespace) -> contextlib.closing[Llama]:
    """Open the embedding model, for texts as long as its training and --ctx-size allow."""
    from specllama.models import resolve, trained_context
    from specllama.server import open_embedder

    path = resolve(arguments.embedding_model)
    context = common.context_options(arguments)
    for name in ("type_k", "type_v"):  # an encoder has no KV cache
        context.pop(name, None)
    size = min(arguments.n_ctx or _USUAL_EMBEDDED, _MOST_EMBEDDED)
    size = min(size, trained_context(path) or size)
    return open_embedder(path, verbose=False, **{**context, "n_ctx": size, "n_batch": size})


def _announce(name: str, bound: socket.socket, *, has_key: bool) -> None:
    """Say where the server listens."""
    host, port = bound.getsockname()[:2]
    print(f"serving {name} on http://{f'[{host}]' if ':' in host else host}:{port}", file=sys.stderr)
    if not has_key and not ipaddress.ip_address(host).is_loopback:
        print("specllama: warning: whoever reaches this address can use it: give --api-key", file=sys.stderr)
