"""The app: its routes over one Llama."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from importlib import resources
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from llama_cpp.server.types import DetokenizeInputRequest, TokenizeInputRequest
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.exceptions import HTTPException
from starlette.responses import Response

from specllama import Llama, __version__

from .answers import Answers
from .auth import KeyRequired
from .errors import ShuttingDownError, error_body, error_reply
from .hosts import HostsChecked, checked_host
from .metrics import Metrics, RequestsCounted
from .replies import EventStream, JsonReply, stopped_when_client_leaves
from .requests import ChatRequest, CompletionRequest
from .worker import Worker


def create_app(
    llm: Llama,
    *,
    name: str,
    api_key: str | None = None,
    max_waiting: int = 16,
    allowed_hosts: Iterable[str] = (),
) -> FastAPI:
    """An app that owns the generations of `llm` while it runs. ``app.state.worker`` is what runs them.

    Args:
        llm: what answers. Nobody else may use it meanwhile; closing it is the caller's.
        name: its name in /v1/models.
        api_key: what every request must carry; None: nothing.
        max_waiting: how many requests may wait while another one has the model; more get 503.
        allowed_hosts: names and addresses by which it may be called, beside the loopback ones: 403 to all others.
            ``"0.0.0.0"`` allows every address, ``"*"`` every name, too, and pages of every origin.

    Raises:
        ValueError: an empty key, a negative number, or a host that is neither a name nor an address.
    """
    if api_key is not None and not api_key.strip():
        raise ValueError("the API key is empty: give one, or none to serve without")
    if max_waiting < 0:
        raise ValueError(f"max_waiting={max_waiting} must be 0 (none may wait) or more")
    hosts = [checked_host(host) for host in allowed_hosts]
    worker = Worker(max_waiting)
    registry = CollectorRegistry()
    registry.register(Metrics(llm, worker))

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(worker.close)

    # FastAPI's documentation pages load scripts from elsewhere; /openapi.json is what they show.
    app = FastAPI(title="specllama", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.worker = worker
    _add_generation(app, llm, name, worker)
    _add_tokenizer(app, llm)
    _add_service(app, name, worker, registry)
    _add_errors(app)
    if api_key is not None:
        app.add_middleware(KeyRequired, key=api_key)
    app.add_middleware(HostsChecked, allowed=hosts)
    endpoints = frozenset(route.path for route in app.routes if hasattr(route, "path"))
    app.add_middleware(RequestsCounted, registry=registry, endpoints=endpoints)
    return app


def _add_generation(app: FastAPI, llm: Llama, name: str, worker: Worker) -> None:
    @app.post("/v1/completions", response_model=None)
    async def completions(request: Request, body: CompletionRequest) -> Response:
        return await answer(request, body)

    @app.post("/v1/chat/completions", response_model=None)
    async def chat_completions(request: Request, body: ChatRequest) -> Response:
        return await answer(request, body)

    async def answer(request: Request, body: CompletionRequest | ChatRequest) -> Response:
        body.model = body.model or name
        try:
            job = worker.start(Answers(llm, body))
            async with stopped_when_client_leaves(request.receive, job):
                first = await anext(job)  # so that an error has a status of its own, in a stream too
                if not body.stream:
                    async for _ in job:
                        pass
        except Exception as error:
            return error_reply(error)
        return EventStream(job, first, error_body) if body.stream else JsonReply(first)


def _add_tokenizer(app: FastAPI, llm: Llama) -> None:
    def tokens_of(body: TokenizeInputRequest) -> list[int]:
        return llm.tokenize(body.input.encode("utf-8", errors="replace"), special=True)

    @app.post("/extras/tokenize")
    def tokenize(body: TokenizeInputRequest) -> dict[str, list[int]]:
        return {"tokens": tokens_of(body)}

    @app.post("/extras/tokenize/count")
    def count(body: TokenizeInputRequest) -> dict[str, int]:
        return {"count": len(tokens_of(body))}

    @app.post("/extras/detokenize")
    def detokenize(body: DetokenizeInputRequest) -> dict[str, str]:
        for token in body.tokens:
            if not 0 <= token < llm.n_vocab():
                raise HTTPException(400, f"token {token} is out of range: the vocabulary has {llm.n_vocab()} tokens")
        return {"text": llm.detokenize(body.tokens).decode("utf-8", errors="replace")}


def _add_service(app: FastAPI, name: str, worker: Worker, registry: CollectorRegistry) -> None:
    page = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    # Whatever the page may try, the browser asks nobody but this server.
    policy = (
        "default-src 'none'; connect-src 'self'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    )

    @app.get("/", include_in_schema=False)
    async def index() -> HTMLResponse:
        return HTMLResponse(page, headers={"Content-Security-Policy": policy})

    @app.get("/health", response_model=None)
    async def health() -> Response:
        return error_reply(ShuttingDownError()) if worker.closing else JsonReply({"status": "ok"})

    @app.get("/metrics", response_model=None)
    async def metrics() -> Response:
        return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        model = {"id": name, "object": "model", "owned_by": "me", "permissions": []}
        return {"object": "list", "data": [model]}


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(HTTPException)
    async def http_error(_: Request, error: HTTPException) -> Response:
        return error_reply(error)

    @app.exception_handler(RequestValidationError)
    async def wrong_body(_: Request, error: RequestValidationError) -> Response:
        # Not what was given: it may be long, or no JSON.
        places = [f"{'.'.join(map(str, one['loc'][1:])) or 'body'}: {one['msg']}" for one in error.errors()[:5]]
        return error_reply(HTTPException(400, "; ".join(places)))
