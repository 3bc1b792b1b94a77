"""Logs one line for each request, and measures how long clients wait for their tokens. No text is ever logged.

Lines go to Python's logger ``specllama.requests`` at level INFO. `specllama serve --log` shows them.
"""

from __future__ import annotations

import itertools
import logging
import sys
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from prometheus_client import CollectorRegistry, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .job import Job

logger = logging.getLogger("specllama.requests")
_JOB = "specllama.job"  # the key of the job in a request's ASGI scope
# Bounds of the histograms' buckets, in seconds: until the first token, and for each token.
_FIRST = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0)
_TOKEN = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def log_to_stderr() -> None:
    """Writes the log lines to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


def note_job(scope: Scope, job: Job) -> None:
    """Records the job that answers a request, for the request's log line."""
    scope[_JOB] = job


class RequestsLogged:
    """Middleware that logs requests, and fills the histograms of ``/metrics``."""

    def __init__(self, app: ASGIApp, registry: CollectorRegistry) -> None:
        self._app = app
        self._numbers = itertools.count(1)
        self._first = Histogram(
            "specllama_first_token_seconds",
            "Seconds from a request to its first token.",
            buckets=_FIRST,
            registry=registry,
        )
        self._token = Histogram(
            "specllama_token_seconds",
            "Seconds for each token behind the prompt, of a request in the mean.",
            buckets=_TOKEN,
            registry=registry,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, and logs how it ended."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        number, start, status = next(self._numbers), time.monotonic(), 0

        async def noting_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting_send)
        finally:
            end = time.monotonic()
            job: Job | None = scope.get(_JOB)
            facts: dict[str, Any] = {
                "id": number,
                "method": scope["method"],
                "path": quote(scope["path"]),  # quoted, because a path may hold a line break
                "status": status,
                "seconds": f"{end - start:.3f}",
            }
            if job is not None:
                facts.update(self._of_job(job, start))
            logger.info("%s", " ".join(f"{name}={value}" for name, value in facts.items()))

    def _of_job(self, job: Job, start: float) -> Iterator[tuple[str, Any]]:
        stats, first = job.stats(), job.first_token_at
        yield "outcome", job.outcome
        yield "prompt", stats.num_prompt_tokens
        yield "reused", stats.num_prompt_tokens_reused
        yield "tokens", stats.num_tokens
        if first is not None:
            self._first.observe(first - start)
            yield "first_seconds", f"{first - start:.3f}"
        seconds = stats.total_seconds - stats.prompt_seconds
        if stats.num_tokens and seconds > 0:
            self._token.observe(seconds / stats.num_tokens)
            yield "tokens_per_second", f"{stats.num_tokens / seconds:.1f}"
        yield "drafted", stats.num_draft_tokens
        yield "accepted", stats.num_accepted_tokens
