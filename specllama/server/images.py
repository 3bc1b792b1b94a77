"""Checks images of requests before an image decoder, which is written in C, reads them."""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Iterable, Mapping
from typing import Any

_MOST_PIXELS = 1 << 25  # in all images of a request. A pixel takes three bytes of memory, and small files may have many
_ADDRESS = re.compile(r"data:image/[\w.+-]+;base64,", re.I)
_PNG, _GIF, _JPEG = b"\x89PNG\r\n\x1a\n", (b"GIF87a", b"GIF89a"), b"\xff\xd8"
_WITHOUT_SIZE = (0xC4, 0xC8, 0xCC)  # JPEG markers in the range of frame markers that do not begin a frame


def require_images(parts: Iterable[Mapping[str, Any]]) -> None:
    """Refuses images that cannot be read, or are too large.

    Args:
        parts: the parts of messages with the type ``image_url``.

    Raises:
        ValueError: an image cannot be read, or the images are too large together.
    """
    num_pixels = 0
    for part in parts:
        width, height = _size_of(_bytes_of(part.get("image_url")))
        num_pixels += width * height
        if num_pixels > _MOST_PIXELS:
            raise ValueError(f"the images have more than {_MOST_PIXELS} pixels together: send smaller ones, or fewer")


def _bytes_of(given: Any) -> bytes:
    address = given.get("url") if isinstance(given, Mapping) else given
    if not isinstance(address, str):
        raise ValueError('an image needs its address: "image_url": {"url": "data:image/png;base64,..."}')
    if re.match(r"[a-z]+://", address, re.I):
        raise ValueError(f"the server fetches no image from {address[:60]!r}: send it as data:image/png;base64,...")
    begin = _ADDRESS.match(address)
    if begin is None:
        raise ValueError(f"the address of an image begins with {address[:20]!r}: send it as data:image/png;base64,...")
    try:
        return base64.b64decode(address[begin.end() :], validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"the address of an image is no base64: {error}") from None


def _size_of(data: bytes) -> tuple[int, int]:
    """Width and height, as the image decoder will read them."""
    try:
        if data.startswith(_PNG):
            if data[12:16] != b"IHDR":  # after a chunk CgBI (Apple's) the decoder would read another size than we do
                raise ValueError("an image is damaged: a PNG begins with its header (IHDR), and this one does not")
            return struct.unpack(">II", data[16:24])
        if data.startswith(_GIF):
            return struct.unpack("<HH", data[6:10])
        if data.startswith(_JPEG):
            return _size_of_jpeg(data)
    except struct.error:
        raise ValueError("an image is damaged: it ends before it says how large it is") from None
    raise ValueError("an image is of a kind that is not read: send PNG, JPEG or GIF")


def _size_of_jpeg(data: bytes) -> tuple[int, int]:
    at = len(_JPEG)
    while True:
        mark, marker, length = struct.unpack(">BBH", data[at : at + 4])
        if mark != 0xFF:
            raise ValueError("an image is damaged: a part of it does not begin as parts of JPEG do")
        if marker == 0xFF:  # a fill byte
            at += 1
        elif 0xC0 <= marker <= 0xCF and marker not in _WITHOUT_SIZE:
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
        else:
            at += 2 + length
