"""One line of the input: a prompt or a chat with its arguments, or a request in OpenAI's batch format."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any, BinaryIO

from specllama.prompts import object_of

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LONGEST = 8 << 20  # the most bytes of a line, equal to the server's limit of a request
_REQUEST = ("url", "method", "body")


@dataclasses.dataclass(frozen=True)
class Line:
    """A line that is not blank."""

    number: int
    """The number of the line in the file, from 1."""
    key: str
    """The key of the line's answer: 32 hex digits, a hash of the text and, if the line has no name, of its number."""
    name: dict[str, Any]
    """The field that names the line in its answer: its ``custom_id`` or ``id``, or else its number as ``index``."""
    content: dict[str, Any]
    """The JSON object of the line; empty if there is a `problem`."""
    problem: ValueError | None = None
    """Why the line cannot be answered; None if it can."""

    @property
    def is_request(self) -> bool:
        """Whether the line is in OpenAI's batch format."""
        return _is_request(self.content)


def lines_of(path: Path) -> Generator[Line, None, None]:
    """The lines of a file that are not blank, read as they are needed. A wrong line has a `problem`.

    Raises:
        OSError: the file cannot be read.
    """
    named: dict[bytes, int] = {}
    with path.open("rb") as file:
        for number in itertools.count(1):
            raw = file.readline(_LONGEST)
            if not raw:
                return
            text = raw.removeprefix(_BYTE_ORDER_MARK).strip() if number == 1 else raw.strip()
            if len(raw) == _LONGEST and not raw.endswith(b"\n"):
                yield _too_long(number, raw, file)
            elif text:
                yield _line(number, text, named)


def _too_long(number: int, beginning: bytes, file: BinaryIO) -> Line:
    """Make the `Line` of a line that is too long. The line is read on to its end, and not kept."""
    digest = hashlib.blake2b(b"%d " % number + beginning, digest_size=16)
    part = beginning
    while part and not part.endswith(b"\n"):
        part = file.readline(_LONGEST)
        digest.update(part)
    problem = ValueError(f"the line has more than {_LONGEST} bytes: shorten it")
    return Line(number, digest.hexdigest(), {"index": number}, {}, problem)


def _line(number: int, text: bytes, named: dict[bytes, int]) -> Line:
    """Make a `Line`.

    Args:
        number: the number of the line.
        text: the bytes of the line.
        named: the numbers of the lines before, by digests of their names. This line is added if it has a name.
    """
    unnamed = {"index": number}
    try:
        content = object_of(_decoded(text))
        name = _name_of(content)
        if name:
            digest = hashlib.blake2b(json.dumps(list(name.values())).encode("ascii"), digest_size=16).digest()
            if (before := named.setdefault(digest, number)) != number:
                raise ValueError(f"line {before} has this {_as_text(name)}, too: give each line one of its own")
    except ValueError as problem:
        return Line(number, _key(b"%d " % number + text), unnamed, {}, problem)
    return Line(number, _key(text if name else b"%d " % number + text), name or unnamed, content)


def _name_of(content: dict[str, Any]) -> dict[str, Any]:
    """The field that names a line; empty if the line has none.

    Raises:
        ValueError: the name is not a text or a whole number, or a request has none.
    """
    key = next((key for key in ("custom_id", "id") if key in content), None)
    if _is_request(content) and key != "custom_id":
        raise ValueError("a request needs a `custom_id`, by which its answer can be told from the others'")
    if key is None:
        return {}
    value = content[key]
    if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
        raise ValueError(f"`{key}` must be a name or a whole number, not {value!r:.100}")
    return {key: value}


def _is_request(content: dict[str, Any]) -> bool:
    return any(field in content for field in _REQUEST)


def _decoded(text: bytes) -> str:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: byte {error.start} of the line; save the file as UTF-8 text") from None


def _key(text: bytes) -> str:
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def _as_text(name: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value!r:.100}" for key, value in name.items())
