"""Answers requests that are cancelled because the server shuts down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ShuttingDownError, error_reply


class CancelledEnded:
    """Middleware: a request that is cancelled at the server's end gets 503 if its answer has not begun.

    The client of such a request has sent only a part of the body, or does not read the answer. Without this middleware,
    uvicorn would log the cancellation as an error of the app. A cancellation while the server runs comes from the
    program around the app, and is passed on.

    Args:
        app: the app to which requests are passed on.
        is_ending: a function that tells whether the server shuts down.
    """

    def __init__(self, app: ASGIApp, is_ending: Callable[[], bool]) -> None:
        self._app = app
        self._is_ending = is_ending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun = False

        async def noting_send(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, noting_send)
        except asyncio.CancelledError:
            if not self._is_ending():
                raise
            if not has_begun:
                await error_reply(ShuttingDownError())(scope, receive, send)
