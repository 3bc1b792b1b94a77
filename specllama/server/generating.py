"""How a request for an answer is served: read, put in line, and answered as a whole or as a stream."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator
from typing import Any, Protocol

from fastapi import Request
from starlette.responses import Response

from specllama import Llama
from specllama.drop_in.watch import Watch

from .errors import error_body, error_reply
from .job import Item, Work
from .lender import Lender
from .log import note_job
from .prompt_progress import WithProgress, empty_chunk
from .replies import EventStream, JsonReply, stopped_when_client_leaves
from .request_limits import Bodies
from .requests import ChatRequest, CompletionRequest
from .worker import Worker


class Teller(Protocol):
    """Tells the chunks of a stream in the words of another API."""

    def __call__(self, chunks: Generator[Item, None, None]) -> Generator[Item, None, None]:
        """One response, or the events of a stream."""


class Translated(Protocol):
    """A body of an API that is another form of chats, or of completions."""

    stream: bool

    def asked(self, llm: Llama) -> ChatRequest | CompletionRequest:
        """The request that it means. It is for a stream always, which `teller` reads.

        Raises:
            ValueError, HTTPException: it means none.
        """

    def teller(self, asked: Any) -> Teller:
        """What tells the answer."""

    def progress_chunk(self) -> Item:
        """What a chunk has besides that says how much of the prompt is read; only if ``return_progress`` is taken."""


class Generating:
    """Answers requests.

    Args:
        lender: who has the model.
        name: what it is called.
        worker: in whose line the requests wait.
        bodies: reads the bodies.
    """

    def __init__(self, lender: Lender, name: str, worker: Worker, bodies: Bodies) -> None:
        self.lender = lender
        self.name = name
        self.bodies = bodies
        self._worker = worker

    async def answer(self, request: Request, model: type[CompletionRequest | ChatRequest]) -> Response:
        """A response in the form that llama_cpp's methods have."""
        try:
            body: CompletionRequest | ChatRequest = await self.bodies.parsed(request, model)
            chunk = functools.partial(empty_chunk, body)
            return await self._answer(request, body, body.stream, None, lambda error, _: error_body(error), chunk)
        except Exception as error:
            return error_reply(error)

    async def told(
        self,
        request: Request,
        model: type[Any],
        error_event: Callable[[Exception, int], Item],
        reply_to: Callable[[Exception], Response] = error_reply,
    ) -> Response:
        """A response in another form, whose streams say themselves where they end.

        Args:
            request: what is asked.
            model: the type of its body, which is `Translated`.
            error_event: what ends a stream that fails after so many events.
            reply_to: the response where nothing else has been said.
        """
        try:
            body: Translated = await self.bodies.parsed(request, model)
            asked = await self.bodies.run(body.asked, self.lender.llm)
            teller = body.teller(asked)
            return await self._answer(request, asked, body.stream, teller, error_event, body.progress_chunk)
        except Exception as error:
            return reply_to(error)

    async def _answer(
        self,
        request: Request,
        asked: CompletionRequest | ChatRequest,
        is_stream: bool,
        teller: Teller | None,
        error_event: Callable[[Exception, int], Item],
        progress_chunk: Callable[[], Item],
    ) -> Response:
        await self.bodies.run(asked.require_room, self.lender.llm)
        asked.model = asked.model or self.name
        work = self.lender.work(asked)
        job = self._worker.start(work if teller is None else _told(work, teller))
        note_job(request.scope, job)
        items = WithProgress(job, progress_chunk()) if is_stream and asked.return_progress else job
        async with stopped_when_client_leaves(request.receive, items):
            first = await anext(items)  # so that an error has a status of its own, in a stream too
            if not is_stream:
                async for _ in job:
                    pass
        if not is_stream:
            return JsonReply(first)
        return EventStream(items, first, error_event, ends_itself=teller is not None)


def _told(work: Work, teller: Teller) -> Work:
    def told(watch: Watch) -> Generator[Item, None, None]:
        with contextlib.closing(work(watch)) as chunks:
            yield from teller(chunks)

    return told
