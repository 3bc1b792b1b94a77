"""Responses: one JSON object, or a stream of JSON objects as server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .job import Item, Job
from .prompt_progress import with_pings


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
async def stopped_when_client_leaves(receive: Receive, job: Job) -> AsyncIterator[None]:
    """Stops the job if the client disconnects while the block runs, or if an exception ends the block.

    The request's body must have been read before.
    """

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        job.stop()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except BaseException:  # also a cancelled request: no disconnect is reported if another program runs the app
        job.stop()
        raise
    finally:
        watcher.cancel()
        await asyncio.wait({watcher})


PING = b": ping\n\n"
"""A comment of server-sent events, which all clients ignore."""


def event_of(item: Item) -> bytes:
    """The server-sent event of an item, with its name if the item has a type."""
    name = b"event: " + item["type"].encode("ascii") + b"\n" if "type" in item else b""
    return name + b"data: " + to_json(item) + b"\n\n"


class EventStream(Response):
    """Sends the events of a job. The last event is ``[DONE]``, the job's own last event, or an error object.

    The head is sent at once, and a ping whenever nothing comes for some seconds, also while the request waits in line.
    Starlette's StreamingResponse would not notice that the client has left until it sends the next event.

    Args:
        job: gives the events, as bytes.
        error_event: makes the event of an error, from the error and the number of events so far.
        progress: gives chunks with the progress of the prompt; None if the request does not ask for it.
        ping: the bytes to send while no event comes.
        ends_itself: whether the events have an end of their own, so that ``[DONE]`` is not sent.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        job: Job,
        error_event: Callable[[Exception, int], Item],
        *,
        progress: Callable[[], Item | None] | None = None,
        ping: bytes = PING,
        ends_itself: bool = False,
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._job = job
        self._error_event = error_event
        self._progress = progress
        self._ping = ping
        self._ends_itself = ends_itself

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the stream."""
        async with stopped_when_client_leaves(receive, self._job):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async with contextlib.aclosing(self._events()) as events:
                async for event in events:
                    await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body"})

    async def _events(self) -> AsyncGenerator[bytes, None]:
        count = 0
        try:
            async with contextlib.aclosing(with_pings(self._job, self._progress)) as items:
                async for item in items:
                    count += item is not None
                    yield self._ping if item is None else item if isinstance(item, bytes) else event_of(item)
        except Exception as error:
            yield event_of(self._error_event(error, count))
        else:
            if not self._ends_itself:
                yield b"data: [DONE]\n\n"
