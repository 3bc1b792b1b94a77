"""The file of an entry: a header, the tokens, the data, and a digest over all of it.

A file may be damaged, cut, or another program's. So everything in it is compared with its name and its digest.
"""

from __future__ import annotations

import os
import struct
from typing import BinaryIO, NamedTuple

import numpy as np
import xxhash

from .entry import BLOCK, Data, Entry, Name, Tokens, digest_of

_MAGIC = b"SPLPFX1\n"
_HEADER = struct.Struct("<8s16s16s16sIIQ16s")  # magic, root, parent, own, is a point, tokens, bytes of data, digest
_DIGEST_SIZE = 16
_MOST_DATA = 1 << 36


class DamagedError(ValueError):
    """The file is not what its name says."""


class Room:
    """Memory for the data of one entry after the other."""

    def __init__(self) -> None:
        self._array = np.empty(0, dtype=np.uint8)

    def of(self, size: int) -> Data:
        """An array of this size, which the next call may return again."""
        if len(self._array) < size:
            self._array = np.empty(size, dtype=np.uint8)
        return self._array[:size]


class _Header(NamedTuple):
    num_tokens: int
    size: int
    digest: bytes
    named: bytes
    """The part of the header before the digest."""


def file_name(name: Name) -> str:
    """The name of an entry's file."""
    return f"{name.parent.hex()}-{name.own.hex()}.{name.kind}"


def name_of(root: bytes, file: str) -> Name | None:
    """The entry whose file has this name; None if no entry's file has."""
    stem, _, kind = file.partition(".")
    parent, _, own = stem.partition("-")
    try:
        found = Name(root, bytes.fromhex(parent), bytes.fromhex(own), "point" if kind == "point" else "range")
    except ValueError:
        return None
    return found if file_name(found) == file else None


def write_entry(file: BinaryIO, entry: Entry) -> None:
    """Write an entry.

    Raises:
        OSError: the file cannot be written.
    """
    name, tokens = entry.name, entry.tokens.astype("<i4").tobytes()
    fields = name.root, name.parent, name.own, int(name.kind == "point"), len(entry.tokens), entry.data.nbytes
    named = _HEADER.pack(_MAGIC, *fields, b"")[:-_DIGEST_SIZE]
    for part in (named + _digest(named, tokens, entry.data) + tokens, entry.data.data):
        left = memoryview(part)
        while left:  # a file without a buffer may take a part
            left = left[file.write(left) :]


def size_of_file(entry: Entry) -> int:
    """How many bytes the file of an entry has."""
    return _HEADER.size + 4 * len(entry.tokens) + int(entry.data.nbytes)


def read_tokens(file: BinaryIO, name: Name) -> Tokens:
    """Read the tokens of an entry.

    Raises:
        OSError: the file cannot be read.
        DamagedError: the file is not what its name says.
    """
    return _read_tokens(file, name, _read_header(file, name))


def read_data(file: BinaryIO, name: Name, room: Room) -> Data:
    """Read the data of an entry.

    Args:
        file: the file.
        name: the entry.
        room: memory for the data.

    Raises:
        OSError: the file cannot be read.
        DamagedError: the file is not what its name says.
    """
    header = _read_header(file, name)
    tokens = _read_tokens(file, name, header)
    if os.fstat(file.fileno()).st_size != _HEADER.size + 4 * header.num_tokens + header.size:
        raise DamagedError("it has another size than it says")
    data = room.of(header.size)
    done = 0
    while done < header.size:
        count = file.readinto(data[done:])  # type: ignore[attr-defined]
        if not count:
            raise DamagedError("it was cut")
        done += count
    if _digest(header.named, tokens.astype("<i4").tobytes(), data) != header.digest:
        raise DamagedError("its content has changed")
    return data


def _read_header(file: BinaryIO, name: Name) -> _Header:
    read = file.read(_HEADER.size)
    if len(read) != _HEADER.size:
        raise DamagedError("it has no header")
    magic, root, parent, own, is_point, num_tokens, size, digest = _HEADER.unpack(read)
    if (magic, root, parent, own, is_point) != (_MAGIC, *name[:3], name.kind == "point"):
        raise DamagedError("its header is another one's")
    if not 1 <= num_tokens <= BLOCK or not 0 < size <= _MOST_DATA:
        raise DamagedError("its sizes are impossible")
    return _Header(num_tokens, size, digest, read[:-_DIGEST_SIZE])


def _read_tokens(file: BinaryIO, name: Name, header: _Header) -> Tokens:
    read = file.read(4 * header.num_tokens)
    if len(read) != 4 * header.num_tokens:
        raise DamagedError("it was cut")
    tokens = np.frombuffer(read, dtype="<i4").astype(np.int32)
    if digest_of(name.parent, tokens) != name.own:
        raise DamagedError("its tokens have changed")
    return tokens


def _digest(named: bytes, tokens: bytes, data: Data) -> bytes:
    found = xxhash.xxh3_128(named)
    found.update(tokens)
    found.update(data.data)
    return found.digest()
