"""Errors, in OpenAI's form and with the HTTP status that OpenAI's clients expect."""

from __future__ import annotations

import logging
import os

from starlette.exceptions import HTTPException

import specllama
from specllama.engine import Stopped

from .replies import JsonReply

_log = logging.getLogger("specllama.server")
_CLIENT_LEFT = 499  # nginx's status for a client that has left, for the log and the metrics


class LineFullError(Exception):
    """The queue of requests is full.

    Args:
        num_waiting: how many requests wait.
        retry_after: seconds after which the client should try again.
    """

    def __init__(self, num_waiting: int, retry_after: int) -> None:
        super().__init__(f"the model is busy and {num_waiting} requests wait already: try again in {retry_after} s")
        self.retry_after = retry_after


class ShuttingDownError(Exception):
    """The server is shutting down."""

    def __init__(self) -> None:
        super().__init__("the server is shutting down")


def status_of(error: Exception) -> int:
    """The HTTP status of an error. A ValueError is 400, since a Llama raises it for a value in the request."""
    if isinstance(error, HTTPException):
        return error.status_code
    if isinstance(error, (LineFullError, ShuttingDownError, specllama.BusyError)):
        return 503
    if isinstance(error, Stopped):
        return _CLIENT_LEFT
    if str(error).startswith("no token can be sampled"):  # the request has banned all tokens
        return 400
    return 400 if isinstance(error, ValueError) else 500


def error_body(error: Exception) -> dict[str, dict[str, str | None]]:
    """OpenAI's error object."""
    status = status_of(error)
    if status == 500:
        _log.error("a request failed", exc_info=error)
    message = _message(error).replace(" (what it says is on stderr)", "")  # the client does not see stderr
    # OpenAI's code, by which clients know that a shorter prompt would be accepted.
    too_long = "exceed context window" in message
    return {
        "error": {
            "message": message or type(error).__name__,
            "type": "invalid_request_error" if status < 500 else "server_error",
            "param": None,
            "code": "context_length_exceeded" if too_long else None,
        }
    }


def _message(error: Exception) -> str:
    if isinstance(error, HTTPException):
        return error.detail
    if isinstance(error, OSError) and error.filename is not None:  # clients must not learn where a file lies
        return f"{error.strerror}: {os.path.basename(str(error.filename))}"
    return str(error)


def error_headers(error: Exception) -> dict[str, str]:
    """The headers of the response to an error."""
    headers = dict(getattr(error, "headers", None) or {})
    if status_of(error) == 503:
        headers["Retry-After"] = str(getattr(error, "retry_after", 1))
    return headers


def error_reply(error: Exception) -> JsonReply:
    """The response to an error."""
    return JsonReply(error_body(error), status_of(error), error_headers(error))
