"""Answers lines in OpenAI's batch format, as the server would.

This module needs the extra `server`.
"""

from __future__ import annotations

import contextlib
from typing import Any, cast

from pydantic import PrivateAttr

from specllama import Llama
from specllama.drop_in import Watch
from specllama.engine import Slot
from specllama.many import Outcome, takes_the_model_alone
from specllama.server.blocks import READ
from specllama.server.chats import ChatRequest
from specllama.server.completions import CompletionRequest
from specllama.server.errors import error_body, status_of
from specllama.server.request_limits import checked
from specllama.server.responses import ResponsesRequest
from specllama.server.several import answering
from specllama.server.wire import without_nulls

from .answers import REQUEST_ID
from .line import Line
from .plain import NO_STREAMS, problem_of

Body = ChatRequest | CompletionRequest


class _OfResponses(ChatRequest):
    """The chat of a line for /v1/responses."""

    _responses: ResponsesRequest | None = PrivateAttr(None)


_RESPONSES = "/v1/responses"
_MODELS: dict[str, type[Body] | type[ResponsesRequest]] = {
    _RESPONSES: ResponsesRequest,
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
}


class LineError(ValueError):
    """A line in OpenAI's format that is no valid request."""


def body_of(line: Line, defaults: dict[str, Any]) -> Body:
    """The checked body of one line.

    Args:
        line: the request.
        defaults: the fields that the request may leave out.

    Raises:
        LineError: the method, the URL or the body is not known.
        HTTPException: the body is wrong.
    """
    method, url, given = (line.content.get(field) for field in ("method", "url", "body"))
    if method not in ("POST", None):
        raise LineError(f"method={method!r:.100} must be 'POST'")
    if not isinstance(url, str) or url not in _MODELS:
        raise LineError(f"url={url!r:.100} is not known: it must be one of {', '.join(_MODELS)}")
    if not isinstance(given, dict):
        raise LineError(f"`body` must be an object with the fields of {url}")
    if given.get("stream"):
        raise LineError(NO_STREAMS)
    fields = {field: value for field, value in given.items() if value is not None}
    if url == _RESPONSES:
        request = checked(fields, ResponsesRequest)
        body = checked({**defaults, **without_nulls(request.chat()), **READ}, _OfResponses)
        body._responses = request
        return body
    return checked({**defaults, **fields}, cast("type[Body]", _MODELS[url]))


def is_alone(body: Body) -> bool:
    """Whether only the Llama's own context can generate the texts."""
    return any(takes_the_model_alone(dict(text)) for text in body.texts())


def generate(llm: Llama, slot: Slot, watch: Watch, body: Body, name: str) -> dict[str, Any]:
    """The body of the response to one line.

    Args:
        llm: generates the answer.
        slot: where to generate.
        watch: follows the answer.
        body: the checked body of the request.
        name: the model's name, unless the request has one.

    Raises:
        Exception: the body asks for something that cannot be done, or generating has failed.
    """
    body.require_room(llm)
    body.model = body.model or name
    work = answering(llm, body, body.texts(), lambda job: contextlib.nullcontext(slot))
    chunks = work(watch)
    if isinstance(body, _OfResponses) and body._responses is not None:
        chunks = body._responses.translator(body)(chunks)
    response: dict[str, Any]
    [response] = chunks
    return response


def answer(line: Line, outcome: Outcome) -> dict[str, Any]:
    """The object that the output gets for a line."""
    head = {"id": f"{REQUEST_ID}{line.key}", **line.name}
    if isinstance(outcome.error, LineError):
        said = {"code": "invalid_request", "message": problem_of(line, outcome.error)}
        return {**head, "response": None, "error": said}
    failed = outcome.error
    response = {
        "status_code": 200 if failed is None else status_of(failed),
        "request_id": f"req_{line.key}",
        "body": outcome.response if failed is None else error_body(failed),
    }
    return {**head, "response": response, "error": None}
