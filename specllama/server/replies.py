"""Responses: one JSON object, or a stream of them as server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .job import Item, Job

if TYPE_CHECKING:
    from .prompt_progress import WithProgress


def to_json(value: Any) -> bytes:
    """Compact JSON in ASCII: a client may send half a surrogate pair, which UTF-8 cannot say, and get it back."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


class JsonReply(Response):
    """One JSON object."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The body."""
        return to_json(content)


@contextlib.asynccontextmanager
async def stopped_when_client_leaves(receive: Receive, job: Job | WithProgress) -> AsyncIterator[None]:
    """While the block runs, a client that disconnects stops the job. The request's body must have been read."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        job.stop()

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher


class EventStream(Response):
    """The items of a job as server-sent events, ended by ``[DONE]`` or by an error object.

    Starlette's StreamingResponse would notice only at the next event that the client has left.
    """

    media_type = "text/event-stream"

    def __init__(self, job: Job | WithProgress, first: Item, error_body: Callable[[Exception], Item]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._job = job
        self._first = first
        self._error_body = error_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async with stopped_when_client_leaves(receive, self._job):
                async for event in self._events():
                    await send({"type": "http.response.body", "body": b"data: " + event + b"\n\n", "more_body": True})
                await send({"type": "http.response.body"})
        finally:
            self._job.stop()  # sending failed, or the server cancelled this

    async def _events(self) -> AsyncIterator[bytes]:
        yield to_json(self._first)
        try:
            async for item in self._job:
                yield to_json(item)
        except Exception as error:
            yield to_json(self._error_body(error))
        else:
            yield b"[DONE]"
