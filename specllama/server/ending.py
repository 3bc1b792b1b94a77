"""Ends requests for which the server waits no longer."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ShuttingDownError, error_reply


class CancelledEnded:
    """Middleware: a request that is cancelled at the server's end gets 503 if its answer has not begun.

    Such a request has sent only a part of its body, or does not read its answer. Without this, uvicorn would log the
    cancellation as an error of the app.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

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
            if not has_begun:
                await error_reply(ShuttingDownError())(scope, receive, send)
