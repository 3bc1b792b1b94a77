"""Serves requests for answers: reads the body, queues the work, and answers as a whole or as a stream."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Generator
from typing import Any, Protocol

from fastapi import Request
from starlette.responses import Response

from specllama import Llama
from specllama.drop_in import Watch

from .beginning import require_can_begin
from .chats import ChatRequest
from .completions import CompletionRequest
from .errors import error_body, error_reply
from .job import Item, Work
from .lender import Lender
from .log import note_job
from .prompt_progress import Progress, empty_chunk
from .replies import PING, EventStream, JsonReply, event_of, stopped_when_client_leaves
from .request_limits import Bodies
from .worker import Worker

_CHECKING = 2.0  # seconds that a stream's HTTP head waits for the check of its request; later errors come as events


class Translator(Protocol):
    """Translates the chunks of a stream into the form of another API."""

    def __call__(self, chunks: Generator[Item, None, None]) -> Generator[Item, None, None]:
        """Yields one response, or the events of a stream."""


class Translated(Protocol):
    """A body of another API, which has an equivalent chat or completion request."""

    stream: bool

    def asked(self, llm: Llama) -> ChatRequest | CompletionRequest:
        """The equivalent request. It always asks for a stream, whose chunks the translator reads.

        Raises:
            ValueError, HTTPException: the body has no equivalent.
        """

    def translator(self, asked: Any) -> Translator:
        """Returns a function that translates the answer's chunks."""

    def progress_chunk(self) -> Item:
        """A chunk without text, to which the progress of the prompt is added. Used only with ``return_progress``."""


class Generating:
    """Answers requests.

    Args:
        lender: lends the model to requests.
        name: the model's name.
        worker: runs the requests.
        bodies: reads the bodies.
    """

    def __init__(self, lender: Lender, name: str, worker: Worker, bodies: Bodies) -> None:
        self.lender = lender
        self.name = name
        self.bodies = bodies
        self._worker = worker

    async def answer(self, request: Request, model: type[CompletionRequest | ChatRequest]) -> Response:
        """Answers in the form that llama_cpp's methods have."""
        try:
            body: CompletionRequest | ChatRequest = await self.bodies.parsed(request, model)
            chunk = functools.partial(empty_chunk, body)
            return await self._answer(request, body, body.stream, None, lambda error, _: error_body(error), chunk)
        except Exception as error:
            return error_reply(error)

    async def translated(
        self,
        request: Request,
        model: type[Any],
        error_event: Callable[[Exception, int], Item],
        reply_to: Callable[[Exception], Response] = error_reply,
        ping: bytes = PING,
    ) -> Response:
        """Answers in another form, whose streams have an end of their own.

        Args:
            request: the HTTP request.
            model: the type of the request's body, a `Translated`.
            error_event: makes the last event of a stream that fails, from the error and the number of events so far.
            reply_to: makes the response to an error before anything was sent.
            ping: the bytes that a stream sends while no event comes.
        """
        try:
            body: Translated = await self.bodies.parsed(request, model)
            asked = await self.bodies.run(body.asked, self.lender.llm)
            translator = body.translator(asked)
            return await self._answer(request, asked, body.stream, translator, error_event, body.progress_chunk, ping)
        except Exception as error:
            return reply_to(error)

    async def _answer(
        self,
        request: Request,
        asked: CompletionRequest | ChatRequest,
        is_stream: bool,
        translator: Translator | None,
        error_event: Callable[[Exception, int], Item],
        progress_chunk: Callable[[], Item],
        ping: bytes = PING,
    ) -> Response:
        asked.model = asked.model or self.name
        await self.bodies.run(asked.require_room, self.lender.llm)
        if is_stream:  # a stream's status is sent before its first token, so errors should be found before that
            checking = asyncio.ensure_future(self.bodies.run(require_can_begin, self.lender.llm, asked))
            if (await asyncio.wait({checking}, timeout=_CHECKING))[0]:
                checking.result()
            else:  # the check goes on; the stream will report the error, so the check's own exception is only fetched
                checking.add_done_callback(lambda done: done.cancelled() or done.exception())
        work = self.lender.work(asked)
        answer = work if translator is None else _translated(work, translator)
        job = self._worker.start(_as_events(answer) if is_stream else answer)
        note_job(request.scope, job)
        if is_stream:
            progress = Progress(job, progress_chunk()) if asked.return_progress else None
            return EventStream(job, error_event, progress=progress, ping=ping, ends_itself=translator is not None)
        async with stopped_when_client_leaves(request.receive, job):
            whole = await anext(job)
            async for _ in job:
                pass
        return JsonReply(whole)


def _translated(work: Work, translator: Translator) -> Work:
    def translated(watch: Watch) -> Generator[Item, None, None]:
        with contextlib.closing(work(watch)) as chunks:
            yield from translator(chunks)

    return translated


def _as_events(work: Work) -> Work:
    """The work with its items as bytes of a stream's events: bytes take less memory, and can be counted."""

    def events(watch: Watch) -> Generator[bytes, None, None]:
        with contextlib.closing(work(watch)) as items:
            for item in items:
                yield event_of(item)

    return events
