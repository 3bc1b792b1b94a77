"""The API key: requests without it get 401."""

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

    Also accepted: ``Basic`` with the key as the password of any user, which browsers ask for, so that the page works;
    and ``X-Api-Key: KEY``, which Anthropic's clients send.
    """

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._key = key.encode("utf-8").strip()  # a key that was read from a file ends with a newline

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, or answers 401."""
        if scope["type"] == "lifespan" or hmac.compare_digest(_key_of(Headers(scope=scope)), self._key):
            await self._app(scope, receive, send)
            return
        challenge = {"WWW-Authenticate": 'Basic realm="specllama: the API key is the password", charset="UTF-8"'}
        error = HTTPException(401, "missing or wrong API key: send it as Authorization: Bearer KEY", challenge)
        await error_reply(error)(scope, receive, send)


def _key_of(headers: Headers) -> bytes:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        # Stripped as bytes: in Starlette's text, which is decoded as latin-1, the last byte of à is a space.
        return value.encode("latin-1").strip()
    if scheme.lower() != "basic":
        return headers.get("x-api-key", "").encode("latin-1").strip()
    try:
        return base64.b64decode(value, validate=True).partition(b":")[2].strip()
    except (binascii.Error, ValueError):
        return b""
