"""What a stream sends while there is no token: pings and, if asked for, how much of the prompt is read.

Proxies and clients close a connection on which nothing comes for a minute or more.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from typing import Any

from .chats import ChatRequest
from .completions import CompletionRequest
from .job import Item, Job

_EVERY = 0.25  # seconds between two checks of the prompt's progress
_PING = 5.0  # seconds without a byte after which a ping is sent


async def with_pings(job: Job, progress: Callable[[], Item | None] | None) -> AsyncGenerator[Any, None]:
    """Yields the items of a job, and None, for a ping, whenever nothing has come for `_PING` seconds.

    Args:
        job: answers the request.
        progress: a function that gives a chunk with the progress of the prompt, or None if there is no news. It is
            called only before the first item. None: the request does not ask for the progress.
    """
    coming: asyncio.Task[Any] | None = None
    try:
        while True:
            coming = asyncio.create_task(_next_of(job))
            said_at = time.monotonic()
            while not (await asyncio.wait({coming}, timeout=_PING if progress is None else min(_EVERY, _PING)))[0]:
                chunk = None if progress is None else progress()
                if chunk is not None or time.monotonic() - said_at >= _PING:
                    said_at = time.monotonic()
                    yield chunk
            progress = None
            try:
                item = coming.result()
            except StopAsyncIteration:
                return
            yield item
    finally:
        if coming is not None and not coming.done():
            coming.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await coming


async def _next_of(job: Job) -> Any:
    return await anext(job)


class Progress:
    """How much of a job's prompt is read, in llama-server's form.

    Args:
        job: answers the request.
        chunk: a chunk without text, to which the progress is added.
    """

    def __init__(self, job: Job, chunk: Item) -> None:
        self._job = job
        self._chunk = chunk
        self._said = -1
        self._began: float | None = None

    def __call__(self) -> Item | None:
        """A chunk with the progress of the prompt; None if it has not changed."""
        stats = self._job.stats()
        if stats.num_prompt_tokens == 0:
            return None
        now = time.monotonic()
        self._began = now if self._began is None else self._began
        total, cached = stats.num_prompt_tokens, stats.num_prompt_tokens_reused
        processed = min(total, cached + stats.num_target_tokens_decoded)
        if processed == self._said:
            return None
        self._said = processed
        spent = round((now - self._began) * 1000)
        return {
            **self._chunk,
            "prompt_progress": {"total": total, "cache": cached, "processed": processed, "time_ms": spent},
        }


def empty_chunk(request: ChatRequest | CompletionRequest) -> Item:
    """A chunk without text, to which the progress of the prompt is added."""
    is_chat = isinstance(request, ChatRequest)
    text: dict[str, Any] = {"delta": {}} if is_chat else {"text": "", "logprobs": None}
    return {
        "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4()}",
        "object": "chat.completion.chunk" if is_chat else "text_completion",
        "created": int(time.time()),
        "model": request.model,
        "choices": [{"index": 0, **text, "finish_reason": None}],
    }
