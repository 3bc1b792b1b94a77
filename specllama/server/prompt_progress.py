"""Reports how much of a prompt is read, to clients that ask for it (``return_progress``), in llama-server's form."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

from .job import Item, Job
from .requests import ChatRequest, CompletionRequest

_EVERY = 0.25  # seconds


class WithProgress:
    """The items of a job, preceded by chunks with the progress of the prompt. Only for the event loop's thread.

    No chunk is sent before the prompt is begun: until then an error of the request gets its own status.

    Args:
        job: answers the request.
        chunk: the other fields of a chunk with the progress.
    """

    def __init__(self, job: Job, chunk: Item) -> None:
        self._job = job
        self._first: asyncio.Future[Item] | None = asyncio.ensure_future(anext(job))
        self._chunk = chunk
        self._said = -1
        self._began: float | None = None

    def stop(self) -> None:
        """Stops the job: see `Job.stop`."""
        self._job.stop()
        if self._first is not None and not self._first.done():
            self._first.cancel()

    def __aiter__(self) -> WithProgress:
        return self

    async def __anext__(self) -> Item:
        while self._first is not None:
            if (await asyncio.wait({self._first}, timeout=_EVERY))[0]:
                first, self._first = self._first, None
                if first.cancelled():  # by `stop`; the job gives the reason
                    break
                return first.result()
            progress = self._progress()
            if progress is not None:
                return {**self._chunk, "prompt_progress": progress}
        return await anext(self._job)

    def _progress(self) -> dict[str, int] | None:
        """The progress of the prompt; None if it has not changed."""
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
        return {"total": total, "cache": cached, "processed": processed, "time_ms": round((now - self._began) * 1000)}


def empty_chunk(request: ChatRequest | CompletionRequest) -> Item:
    """A chunk of an answer without text."""
    is_chat = isinstance(request, ChatRequest)
    text: dict[str, Any] = {"delta": {}} if is_chat else {"text": "", "logprobs": None}
    return {
        "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4()}",
        "object": "chat.completion.chunk" if is_chat else "text_completion",
        "created": int(time.time()),
        "model": request.model,
        "choices": [{"index": 0, **text, "finish_reason": None}],
    }
