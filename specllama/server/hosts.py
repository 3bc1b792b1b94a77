"""Whom the server answers to: a page of another name must not use it through the reader's browser."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from .errors import error_reply

ANY_HOST = "*"
_AUTHORITY = re.compile(r"(\[[0-9a-fA-F:.]+(?:%[\w.-]+)?\]|[^\s:/@\[\]]+)(?::(\d{1,5}))?\Z")
_LONGEST_SHOWN = 100


class HostsChecked:
    """Middleware: ``Host`` names this machine, and ``Origin``, which browsers send, the same place.

    Any name can be made to resolve to 127.0.0.1 (DNS rebinding). To the browser such a page and this server are of one
    origin, so that only the name tells them apart.

    Args:
        app: what is behind it.
        allowed: names and addresses beside the loopback ones. An unspecified address (0.0.0.0) allows every address,
            but no name: an address cannot be rebound. ``"*"`` allows all, from everywhere.
    """

    def __init__(self, app: ASGIApp, allowed: Iterable[str]) -> None:
        self._app = app
        self._allowed = {checked_host(name) for name in allowed}
        self._any_address = any(_is_unspecified(name) for name in self._allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 403."""
        if scope["type"] == "lifespan" or ANY_HOST in self._allowed:
            await self._app(scope, receive, send)
            return
        error = self._refusal(Headers(scope=scope))
        await (self._app if error is None else error_reply(error))(scope, receive, send)

    def _refusal(self, headers: Headers) -> HTTPException | None:
        # Without any Host it is no browser's request: a load balancer's, of HTTP/1.0.
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
        return name is not None and (name in self._allowed or _is_loopback(name) or self._is_any_address(name))

    def _is_any_address(self, name: str) -> bool:
        return self._any_address and _address(name) is not None

    def _may_ask(self, origin: str | None, host: str) -> bool:
        """Whether a page of this origin may: one of the same host and port, or of a name that was allowed."""
        if origin is None:
            return True
        scheme, separator, authority = origin.partition("://")
        if not separator or scheme.lower() not in ("http", "https"):  # "null", a file, a browser's extension
            return False
        return authority.lower() == host.lower() or _name_of(authority) in self._allowed


def checked_host(name: str) -> str:
    """A name or an address as it is compared.

    Raises:
        ValueError: it is none, such as one with a scheme or a path.
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
