"""Reads the bodies of requests within a limit, and parses them in threads that block no other work."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from specllama.chat import raise_too_deep, require_few_levels
from specllama.engine import Stopped
from specllama.many import Line

MAX_BODY = 8 << 20
"""The default limit of a body, in bytes."""
_MOST_VALUES = 1 << 17  # JSON values in a body; more get 413
_MOST_WITHOUT_IDS = 1 << 14  # JSON values in a body that are not token ids; more get 413
_SECONDS_TO_SEND = 60  # for a whole body; then 408
_SLOWEST = 1 << 15  # bytes a second at which a large body must arrive, because other large bodies wait for its place
_PATIENCE = 3.0  # seconds that a part of a large body may be late
_LARGE = 1 << 16  # bytes beyond which a body is large
_MOST_LARGE = 4  # large bodies in memory at once
_MOST_PROBLEMS = 5  # in an error message
_LONGEST_PROBLEM = 300  # characters of a problem in an error message
_JSON = re.compile(r"application/(?:[\w.+-]+\+)?json\s*(?:;.*)?\Z", re.I)
_CHARSET = re.compile(r""";\s*charset\s*=\s*"?([^\s";]*)""", re.I)
_PART = re.compile(rb'"[^"]*"?|[,\[{]')  # a JSON string without escaped quotes, or a character that precedes a value
_MAY_HAVE_HALF = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
_HALF = re.compile("[\ud800-\udfff]")  # half of a surrogate pair, which no tokenizer can read

_Body = TypeVar("_Body", bound=BaseModel)
_Result = TypeVar("_Result")


class Bodies:
    """Reads and checks bodies.

    Parsing runs in threads of its own. Python's JSON parser and pydantic hold the GIL until they have finished, so
    bodies that are too large are refused before parsing.

    Args:
        most_bytes: the limit of a body; longer ones get 413.
    """

    def __init__(self, most_bytes: int = MAX_BODY) -> None:
        if most_bytes < 1:
            raise ValueError(f"max_body={most_bytes} must be 1 or more: so many bytes may the body of a request have")
        self._most_bytes = most_bytes
        self._large = asyncio.Semaphore(_MOST_LARGE)
        self._line = Line(2, "specllama-bodies")

    def close(self) -> None:
        """Ends the parsing threads."""
        self._line.close(patience=0)

    async def parsed(self, request: Request, model: type[_Body]) -> _Body:
        """Reads and checks a body.

        Raises:
            HTTPException: 400, 408, 413 or 415, and a message that says what is wrong.
            Stopped: the client has left.
        """
        if not _JSON.match(request.headers.get("content-type", "")):
            raise HTTPException(400, "the body must be JSON: send it with the header Content-Type: application/json")
        _require_plain(request)
        async with contextlib.AsyncExitStack() as memory:
            try:
                body = await asyncio.wait_for(self._read(request, memory), _SECONDS_TO_SEND)
            except asyncio.TimeoutError:
                raise HTTPException(
                    408,
                    f"the body was not read within {_SECONDS_TO_SEND} s: send it faster, or fewer large ones at once",
                ) from None
            except ClientDisconnect:
                raise Stopped("the client has left") from None
            return await self.run(_parse, body, model)

    async def run(self, function: Callable[..., _Result], *args: Any) -> _Result:
        """Calls a function in one of the parsing threads."""
        result: concurrent.futures.Future[_Result] = concurrent.futures.Future()

        def call() -> None:
            if not result.set_running_or_notify_cancel():
                return
            try:
                result.set_result(function(*args))
            except BaseException as error:
                result.set_exception(error)

        self._line.put(call)
        return await asyncio.wrap_future(result)

    async def _read(self, request: Request, memory: contextlib.AsyncExitStack) -> bytes:
        """Reads the bytes. A large body waits for one of ``_MOST_LARGE`` places; until then no more of it is read.

        Once it has a place, which `memory` gives back, the body must arrive fast enough, as others wait for the place.
        """
        declared = request.headers.get("content-length", "")
        self._require_fits(int(declared) if declared.isdecimal() else 0)
        body = bytearray()
        parts = request.stream()
        last: float | None = None  # when the next part must have arrived
        while (part := await _before(last, anext(parts, None))) is not None:
            was_small = len(body) <= _LARGE
            body += part
            self._require_fits(len(body))
            if was_small and len(body) > _LARGE:
                await memory.enter_async_context(self._large)
                last = time.monotonic() + _PATIENCE
            elif last is not None:
                last = min(last + len(part) / _SLOWEST, time.monotonic() + _PATIENCE)
        return bytes(body)

    def _require_fits(self, num_bytes: int) -> None:
        if num_bytes > self._most_bytes:
            raise HTTPException(
                413,
                f"the body has more than {self._most_bytes} bytes: send less, or start the server with a larger "
                "--max-body (create_app: max_body)",
            )


async def _before(last: float | None, part: Awaitable[bytes | None]) -> bytes | None:
    """Waits for a part of a body until the time `last`, and then raises an HTTPException (408). None: waits forever."""
    try:
        return await asyncio.wait_for(part, None if last is None else last - time.monotonic())
    except asyncio.TimeoutError:
        raise HTTPException(
            408, f"the body came slower than {_SLOWEST} bytes a second, and others wait for its place: send it faster"
        ) from None


def _require_plain(request: Request) -> None:
    """Refuses a compressed body, or one with another charset than UTF-8.

    Raises:
        HTTPException: 415.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise HTTPException(415, f"the body has the encoding {encoding[:_LONGEST_PROBLEM]!r}: send it as it is")
    charset = _CHARSET.search(request.headers["content-type"])
    if charset and charset[1].lower() not in ("utf-8", "utf8", "us-ascii"):
        raise HTTPException(415, f"the body has the charset {charset[1][:_LONGEST_PROBLEM]!r}: send it in UTF-8")


def _parse(body: bytes, model: type[_Body]) -> _Body:
    num_values = _num_values(body)
    try:
        value = json.loads(body)
        if _MAY_HAVE_HALF.search(body):
            value = json.loads(_HALF.sub("\ufffd", json.dumps(value, ensure_ascii=False)))
    except RecursionError:
        raise_too_deep("the body")
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise HTTPException(400, f"the body is not JSON: {str(error)[:_LONGEST_PROBLEM]}") from None
    except ValueError:  # Python refuses to convert longer numbers
        raise HTTPException(400, "a number has more than 4300 digits: send a smaller one") from None
    if not isinstance(value, dict):
        raise HTTPException(400, "the body must be a JSON object, such as {}")
    require_few_levels(value, "the body")
    if num_values - _num_ids(value) > _MOST_WITHOUT_IDS:
        raise HTTPException(413, f"the body has more than {_MOST_WITHOUT_IDS} values beside token ids: send fewer")
    return checked(value, model)


Place = tuple[int | str, ...]
"""The place of a value in a body: the names of fields and the indices in lists that lead to the value."""


def checked(value: dict[str, Any], model: type[_Body], place: Callable[[Place], Place] = lambda place: place) -> _Body:
    """Checks a body against a model.

    Args:
        value: the body.
        model: the body's type.
        place: a function for a body that was translated from the client's: it converts a place in `value` to the place
            in the client's body, for error messages.

    Raises:
        HTTPException: 400, and a message that says what is wrong.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)[:_MOST_PROBLEMS]
        raise HTTPException(
            400, "; ".join(_problem_text(place(each["loc"]), each["msg"]) for each in problems)
        ) from None


def _num_values(body: bytes) -> int:
    """The approximate number of values. Refuses a body with too many of them, because parsing cannot be interrupted."""
    most = body.count(b",") + body.count(b"[") + body.count(b"{")
    if most <= _MOST_WITHOUT_IDS:
        return most
    # A pattern with escapes would remember each character of a text: for 8 MB it takes 1 GB, and the GIL for seconds.
    body = body.replace(rb"\\", b"").replace(rb"\"", b"")
    count = 0
    for part in _PART.finditer(body):  # values inside texts do not count
        count += part[0][:1] != b'"'
        if count > _MOST_VALUES:
            raise HTTPException(
                413, f"the body has more than {_MOST_VALUES} values: send fewer (a prompt as text instead of token ids)"
            )
    return count


def _num_ids(body: dict[str, Any]) -> int:
    """The number of token ids in a body. These are parsed quickly, so more of them are allowed than of other values."""
    lists = [body.get(name) for name in ("prompt", "tokens", "input", "content")]
    return sum(_num_in(ids) for ids in lists if isinstance(ids, list))


def _num_in(ids: list[Any]) -> int:
    """The number of values in a list of ids, or in a list of such lists. Messages in the list do not count."""
    return sum(len(part) + 1 if isinstance(part, list) else not isinstance(part, dict) for part in ids)


def _problem_text(place: Place, problem: str) -> str:
    """A place and its problem, without the given value, which may be long."""
    named = ".".join(str(part)[:40] for part in place) or "the body"
    what = problem.removeprefix("Value error, ")  # a prefix that pydantic adds to our message
    return f"{named}: {what[:_LONGEST_PROBLEM]}"
