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
    """Compact JSON in ASCII. A number that JSON lacks, such as an infinity from a request, becomes null."""
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(json.loads(json.dumps(value), parse_constant=lambda _: None), separators=(",", ":"))
    return text.encode("ascii")


class JsonReply(Response):
    """One JSON object."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The body of the response."""
        return to_json(content)


@contextlib.asynccontextmanager
async def stopped_when_client_leaves(receive: Receive, job: Job | WithProgress) -> AsyncIterator[None]:
    """While the block runs, a client that disconnects stops the job, and so does whatever ends the block early.

    The request's body must have been read.
    """

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        job.stop()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except BaseException:  # also where the request is cancelled: an app in another program has no disconnect then
        job.stop()
        raise
    finally:
        watcher.cancel()
        await asyncio.wait({watcher})


class EventStream(Response):
    """Sends the items of a job as server-sent events. The last one is ``[DONE]``, a final item, or an error object.

    Starlette's StreamingResponse would not notice that the client has left until it sends the next event.

    Args:
        job: gives the items.
        first: the first item, which the job has given already.
        error_event: makes the event of an error, from the error and the number of items so far.
        ends_itself: whether the items have an end of their own, so that ``[DONE]`` is not sent.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        job: Job | WithProgress,
        first: Item,
        error_event: Callable[[Exception, int], Item],
        *,
        ends_itself: bool = False,
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._job = job
        self._first = first
        self._error_event = error_event
        self._ends_itself = ends_itself

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the stream."""
        async with stopped_when_client_leaves(receive, self._job):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for event in self._events():
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body"})

    async def _events(self) -> AsyncIterator[bytes]:
        count = 1
        yield self._event(self._first)
        try:
            async for item in self._job:
                yield self._event(item)
                count += 1
        except Exception as error:
            yield self._event(self._error_event(error, count))
        else:
            if not self._ends_itself:
                yield b"data: [DONE]\n\n"

    @staticmethod
    def _event(item: Item) -> bytes:
        """The event of an item, with its name if the item has a type."""
        name = b"event: " + item["type"].encode("ascii") + b"\n" if "type" in item else b""
        return name + b"data: " + to_json(item) + b"\n\n"
