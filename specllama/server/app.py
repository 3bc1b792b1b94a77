"""The app: its routes over one Llama."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.exceptions import HTTPException
from starlette.responses import Response

from specllama import Llama, __version__
from specllama.engine import Stopped, checked_max_parallel, require_room
from specllama.llama import require_ours

from .anthropic import CountRequest, MessagesRequest, add_messages
from .auth import KeyRequired
from .chats import ChatRequest
from .completions import CompletionRequest
from .document import document, with_body
from .embeddings import EmbeddingRequest, add_embeddings, can_embed, require_embeds
from .ending import CancelledEnded
from .errors import ShuttingDownError, error_reply
from .generating import Generating
from .head import HeadAnswered
from .hosts import HostsChecked, WholeAddress, checked_host
from .lender import Lender
from .llama_server import BODIES, add_llama_servers, meta_of
from .log import RequestsLogged
from .metrics import Metrics, RequestsCounted
from .native import InfillRequest, NativeRequest, add_native
from .page import page_and_policy
from .prompts import DetokenizeRequest, TokenizeInputRequest
from .replies import JsonReply
from .request_limits import MAX_BODY, Bodies
from .responses import ResponsesRequest, add_responses
from .worker import Worker


def create_app(
    llm: Llama,
    *,
    name: str,
    api_key: str | None = None,
    max_waiting: int = 16,
    max_parallel: int = 1,
    allowed_hosts: Iterable[str] = (),
    host: str | None = None,
    max_body: int = MAX_BODY,
    embedder: Llama | None = None,
) -> FastAPI:
    """Creates an app that owns the generations of `llm` while it runs. ``app.state.worker`` runs them.

    Args:
        llm: generates the answers. Nothing else may use it meanwhile. The caller closes it.
        name: the model's name in /v1/models.
        api_key: the key that every request must have, without the white space around it; None: no key is needed.
        max_waiting: how many requests may wait while others have the model; further ones get 503.
        max_parallel: how many requests are answered at once, each with room for ``n_ctx`` tokens. A model whose states
            llama.cpp cannot copy answers one request after the other, with a warning.
        allowed_hosts: names and addresses under which the server may be called, besides the loopback ones; other hosts
            get 403. Pages of these hosts may call it from a browser. ``"0.0.0.0"`` allows every address. ``"*"`` also
            allows every name, and pages of every origin.
        host: the host that the server listens on, under which it may be called, too.
        embedder: computes embeddings. None: `llm` does, if it was created with ``embedding=True`` and a
            ``pooling_type``.
        max_body: the most bytes of a request's body; longer ones get 413.

    Raises:
        TypeError: `llm` or `embedder` is no ``specllama.Llama``.
        ValueError: the key is empty, a number is out of range, a host is neither a name nor an address, or the
            embedder does not make one vector of a text.
        MemoryError: the memory is too small for `max_parallel` requests at once.
    """
    if api_key is not None and not api_key.strip():
        raise ValueError("the API key is empty: give one, or none to serve without")
    if max_waiting < 0:
        raise ValueError(f"max_waiting={max_waiting} must be 0 (none may wait) or more")
    require_ours(llm)
    if embedder is not None:
        require_ours(embedder, "embedder")
        require_embeds(embedder)
    hosts, addresses = [checked_host(name) for name in allowed_hosts], [] if host is None else [checked_host(host)]
    bodies = Bodies(max_body)
    lender = Lender(llm, checked_max_parallel(max_parallel))
    worker = Worker(max_waiting, lender.num_slots)
    embedding_worker = worker if embedder is None or embedder is llm else Worker(max_waiting)
    registry = CollectorRegistry()
    registry.register(Metrics(llm, worker))

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        for each in {worker, embedding_worker}:
            each.shut_down()
            await asyncio.to_thread(each.close)
        bodies.close()

    # FastAPI's documentation pages load scripts from other servers, so they are off. /openapi.json has their content.
    app = FastAPI(title="specllama", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.worker, app.state.embedding_worker = worker, embedding_worker
    generating = Generating(lender, name, worker, bodies)
    _add_generation(app, generating)
    add_responses(app, generating)
    add_messages(app, generating)
    add_native(app, generating)
    embeds = embedder or (llm if can_embed(llm) else None)
    add_embeddings(app, bodies, name, embeds, embedding_worker)
    _add_tokenizer(app, llm, bodies)
    add_llama_servers(app, llm, bodies, name=name, worker=worker)
    _add_service(app, name, worker, registry, meta_of(llm))
    _add_errors(app)
    generated = (
        CompletionRequest,
        ChatRequest,
        ResponsesRequest,
        MessagesRequest,
        CountRequest,
        NativeRequest,
        InfillRequest,
    )
    document(app, (*BODIES, *generated, EmbeddingRequest, TokenizeInputRequest, DetokenizeRequest))
    if api_key is not None:
        app.add_middleware(KeyRequired, key=api_key)
    app.add_middleware(HostsChecked, allowed=hosts, addresses=addresses)
    app.add_middleware(CancelledEnded, is_ending=lambda: worker.closing or embedding_worker.closing)
    app.add_middleware(HeadAnswered)
    endpoints = frozenset(route.path for route in app.routes if hasattr(route, "path"))
    app.add_middleware(RequestsCounted, registry=registry, endpoints=endpoints)
    app.add_middleware(RequestsLogged, registry=registry)
    app.add_middleware(WholeAddress)
    return app


def _add_generation(app: FastAPI, generating: Generating) -> None:
    @app.post("/completions", include_in_schema=False, response_model=None)
    @app.post("/v1/completions", response_model=None, openapi_extra=with_body(CompletionRequest))
    async def completions(request: Request) -> Response:
        return await generating.answer(request, CompletionRequest)

    @app.post("/chat/completions", include_in_schema=False, response_model=None)
    @app.post("/v1/chat/completions", response_model=None, openapi_extra=with_body(ChatRequest))
    async def chat_completions(request: Request) -> Response:
        return await generating.answer(request, ChatRequest)


def _add_tokenizer(app: FastAPI, llm: Llama, bodies: Bodies) -> None:
    async def tokens_of(request: Request) -> list[int]:
        text = (await bodies.parsed(request, TokenizeInputRequest)).input.encode("utf-8", errors="replace")
        require_room(len(text), llm.n_ctx())
        return await bodies.run(functools.partial(llm.tokenize, text, special=True))

    @app.post("/extras/tokenize", openapi_extra=with_body(TokenizeInputRequest))
    async def tokenize(request: Request) -> dict[str, list[int]]:
        return {"tokens": await tokens_of(request)}

    @app.post("/extras/tokenize/count", openapi_extra=with_body(TokenizeInputRequest))
    async def count(request: Request) -> dict[str, int]:
        return {"count": len(await tokens_of(request))}

    @app.post("/extras/detokenize", openapi_extra=with_body(DetokenizeRequest))
    async def detokenize(request: Request) -> dict[str, str]:
        tokens = (await bodies.parsed(request, DetokenizeRequest)).tokens
        text = await bodies.run(llm.detokenize, tokens)
        return {"text": text.decode("utf-8", errors="replace")}


def _add_service(app: FastAPI, name: str, worker: Worker, registry: CollectorRegistry, meta: dict[str, Any]) -> None:
    page, policy = page_and_policy()
    model = {"id": name, "object": "model", "created": int(time.time()), "owned_by": "me", "permissions": []}
    model["meta"] = meta

    @app.get("/", include_in_schema=False)
    async def index() -> HTMLResponse:
        return HTMLResponse(page, headers={"Content-Security-Policy": policy})

    @app.get("/v1/health", include_in_schema=False, response_model=None)
    @app.get("/health", response_model=None)
    async def health() -> Response:
        if worker.closing:
            return error_reply(ShuttingDownError())
        texts = {"running": worker.num_running, "waiting": worker.num_waiting, "max_parallel": worker.max_running}
        return JsonReply({"status": "ok", **texts})

    @app.get("/metrics", response_model=None)
    async def metrics() -> Response:
        return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    @app.get("/models", include_in_schema=False)
    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [model]}

    @app.get("/models/{found:path}", include_in_schema=False)
    @app.get("/v1/models/{found:path}")  # an alias may have a slash, as names of the hub have
    async def one_model(found: str) -> dict[str, Any]:
        if found != name:
            raise HTTPException(404, f"there is no model {found[:100]!r} here: this server has {name!r}")
        return model


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(HTTPException)
    async def http_error(_: Request, error: HTTPException) -> Response:
        return error_reply(error)

    @app.exception_handler(ValueError)
    async def wrong_value(_: Request, error: ValueError) -> Response:
        return error_reply(error)

    @app.exception_handler(Stopped)
    async def client_left(_: Request, error: Stopped) -> Response:
        return error_reply(error)
