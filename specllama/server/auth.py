"""The API key: without it nothing answers."""

from __future__ import annotations

import base64
import binascii
import hmac

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from .errors import error_reply


class KeyRequired:
    """Middleware: a request needs ``Authorization: Bearer KEY``.

    Or ``Basic`` with the key as the password of any user: a browser asks for it, so that the page works, too. Or
    ``X-Api-Key: KEY``, as Anthropic's clients send it.
    """

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._key = key.encode("utf-8")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if scope["type"] == "lifespan" or hmac.compare_digest(_key_of(Headers(scope=scope)), self._key):
            await self._app(scope, receive, send)
            return
        challenge = {"WWW-Authenticate": 'Basic realm="specllama: the API key is the password", charset="UTF-8"'}
        error = HTTPException(401, "missing or wrong API key: send it as Authorization: Bearer KEY", challenge)
        await error_reply(error)(scope, receive, send)


def _key_of(headers: Headers) -> bytes:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode("latin-1")  # as Starlette decoded it
    if scheme.lower() != "basic":
        return headers.get("x-api-key", "").strip().encode("latin-1")
    try:
        return base64.b64decode(value, validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""
