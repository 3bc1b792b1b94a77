"""Checks the host and the origin of requests: a foreign web page must not use the server through a browser."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import error_reply

ANY_HOST = "*"
_AUTHORITY = re.compile(r"(\[[0-9a-fA-F:.]+(?:%[\w.-]+)?\]|[^\s:/@\[\]]+)(?::(\d{1,5}))?\Z")
_WHOLE = re.compile(r"https?://([^/]*)(/.*)?\Z", re.I | re.S)
_LONGEST_SHOWN = 100
_SECONDS_ALLOWED = "600"  # for which a browser keeps the answer to its preflight request


class HostsChecked:
    """Middleware: ``Host`` must name this machine, and ``Origin``, which browsers send, the same host and port.

    Any name can be made to resolve to 127.0.0.1 (DNS rebinding). A browser then believes that a page under such a name
    has the same origin as this server. Only the foreign name in ``Host`` shows that the page is foreign.

    A page of another allowed origin may also read the answers: the response headers tell its browser so (CORS).

    Args:
        app: the wrapped app.
        allowed: names and addresses, besides the loopback ones, under which the server may be called and whose pages
            may call it. An unspecified address (0.0.0.0) allows every address, but no name, because only names can be
            rebound. ``"*"`` allows every host and origin.
        addresses: names and addresses that the server listens on. The server may be called under them, but pages of
            these hosts with another port must not call it.
    """

    def __init__(self, app: ASGIApp, allowed: Iterable[str], addresses: Iterable[str] = ()) -> None:
        self._app = app
        self._allowed = {checked_host(name) for name in allowed}
        self._names = {*self._allowed, *map(checked_host, addresses)}
        self._any_address = any(_is_unspecified(name) for name in self._names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, or answers 403."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        error = None if ANY_HOST in self._allowed else self._refusal(headers)
        if error is not None:
            await error_reply(error)(scope, receive, send)
        elif (origin := headers.get("origin")) is None or not self._is_elsewhere(origin, headers.get("host", "")):
            await self._app(scope, receive, send)
        elif scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            await _preflight(origin, headers)(scope, receive, send)  # here, because browsers ask this without the key
        else:
            await self._app(scope, receive, _sharing_with(origin, send))

    def _is_elsewhere(self, origin: str, host: str) -> bool:
        """Whether an origin differs from the host. Then a browser lets the page read answers only with CORS headers."""
        return origin.partition("://")[2].lower() != host.lower()

    def _refusal(self, headers: Headers) -> HTTPException | None:
        # A request without any Host does not come from a browser, but from a load balancer that uses HTTP/1.0.
        wrong = next((host for host in headers.getlist("host") if not self._answers_to(host)), None)
        if wrong is not None:
            return HTTPException(
                403,
                f"this server does not answer to the host {wrong[:_LONGEST_SHOWN]!r}: call it by this machine's "
                "loopback name (localhost), or start it with --allowed-host NAME (create_app: allowed_hosts)",
            )
        if not self._may_ask(headers.get("origin"), headers.get("host", "")):
            return HTTPException(
                403,
                f"a page of {headers['origin'][:_LONGEST_SHOWN]!r} may not use this server: serve it from the server's "
                "own address, or start the server with --allowed-host NAME (create_app: allowed_hosts)",
            )
        return None

    def _answers_to(self, authority: str) -> bool:
        name = _name_of(authority)
        return name is not None and (name in self._names or _is_loopback(name) or self._is_any_address(name))

    def _is_any_address(self, name: str) -> bool:
        return self._any_address and _address(name) is not None

    def _may_ask(self, origin: str | None, host: str) -> bool:
        """Whether a page of this origin may call: it has the same host and port, or an allowed name."""
        if origin is None:
            return True
        scheme, separator, authority = origin.partition("://")
        if not separator or scheme.lower() not in ("http", "https"):  # such as "null", a file, or a browser extension
            return False
        return authority.lower() == host.lower() or _name_of(authority) in self._allowed


class WholeAddress:
    """Middleware: accepts requests that name the server in their target, as in ``GET http://localhost/health``.

    Clients that take the server for a proxy send such a target. HTTP says that the server must then use the name in the
    target, and not the name in ``Host``, which may differ.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on with its path alone as target, and the target's name as ``Host``."""
        match = _WHOLE.match(scope["path"]) if scope["type"] == "http" else None
        if match is not None:
            headers = [(name, value) for name, value in scope["headers"] if name != b"host"]
            headers.insert(0, (b"host", match[1].encode("utf-8")))
            path = match[2] or "/"
            scope = {**scope, "path": path, "raw_path": quote(path).encode("ascii"), "headers": headers}
        await self._app(scope, receive, send)


def _preflight(origin: str, headers: Headers) -> Response:
    """Answers a browser that asks whether a page of this origin may send a request."""
    allowed = {
        "Access-Control-Allow-Methods": "GET, HEAD, POST, OPTIONS",
        "Access-Control-Allow-Headers": headers.get("access-control-request-headers", "*"),
        "Access-Control-Max-Age": _SECONDS_ALLOWED,
    }
    if "access-control-request-private-network" in headers:
        allowed["Access-Control-Allow-Private-Network"] = "true"
    return Response(status_code=204, headers={**_shared_with(origin), **allowed})


def _sharing_with(origin: str, send: Send) -> Send:
    async def sharing_send(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(_shared_with(origin))
        await send(message)

    return sharing_send


def _shared_with(origin: str) -> dict[str, str]:
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Expose-Headers": "Retry-After",
        "Vary": "Origin",
    }


def checked_host(name: str) -> str:
    """Converts a name or an address to the form in which hosts are compared.

    Raises:
        ValueError: `name` is neither, for example because it has a scheme or a path.
    """
    found = name if name == ANY_HOST else _name_of(f"[{name}]" if _address(name) and ":" in name else name)
    if found is None:
        raise ValueError(f"the allowed host {name!r} is neither a name nor an address: give it as in llm.example.com")
    return found


def _name_of(authority: str) -> str | None:
    """The host of ``host:port``, in lower case, without brackets and a last dot; None if it is malformed."""
    match = _AUTHORITY.match(authority.strip())
    return None if match is None else match[1].strip("[]").lower().removesuffix(".")


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _is_loopback(name: str) -> bool:
    address = _address(name)
    return name == "localhost" or name.endswith(".localhost") or (address is not None and address.is_loopback)


def _is_unspecified(name: str) -> bool:
    address = _address(name)
    return address is not None and address.is_unspecified
