"""The file of an entry: a header, the tokens and the data.

A file may be damaged, cut, or another one's. So the header has a digest of itself, which is looked at first, and one of
the data; the name has one of the tokens.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from typing import BinaryIO, NamedTuple

import numpy as np
import xxhash

from .entry import Data, Entry, Name, Room, Tokens, digest_of

_MAGIC = b"SPLPFX1\n"
_HEADER = struct.Struct("<8s16s16s16sIIQ16s")  # magic, root, parent, own, is a point, tokens, bytes and digest of data
_DIGEST_SIZE = 16
_TOKENS_AT = _HEADER.size + _DIGEST_SIZE
_FILE_NAME = re.compile(r"([0-9a-f]{32})-([0-9a-f]{32})\.(range|point)")


class DamagedError(ValueError):
    """The file is not what its name says."""


class _Header(NamedTuple):
    num_tokens: int
    size: int
    digest: bytes


def file_name(name: Name) -> str:
    """The name of an entry's file."""
    return f"{name.parent.hex()}-{name.own.hex()}.{name.kind}"


def name_of(root: bytes, file: str) -> Name | None:
    """The entry whose file has this name; None if no entry's file has."""
    if (found := _FILE_NAME.fullmatch(file)) is None:
        return None
    parent, own, kind = found.groups()
    return Name(root, bytes.fromhex(parent), bytes.fromhex(own), "point" if kind == "point" else "range")


def is_file_name(file: str) -> bool:
    """Whether an entry's file has this name."""
    return _FILE_NAME.fullmatch(file) is not None


def write_entry(file: BinaryIO, entry: Entry) -> None:
    """Write an entry.

    Raises:
        OSError: the file cannot be written.
    """
    name, tokens = entry.name, entry.tokens.astype("<i4").tobytes()
    sizes = len(entry.tokens), entry.data.nbytes
    header = _HEADER.pack(_MAGIC, *name[:3], name.kind == "point", *sizes, _digest(entry.data.data))
    for part in (header + _digest(header) + tokens, entry.data.data):
        left = memoryview(part)
        while left:  # a file without a buffer may take a part
            left = left[file.write(left) :]


def size_of_file(entry: Entry) -> int:
    """How many bytes the file of an entry has."""
    return _TOKENS_AT + 4 * len(entry.tokens) + int(entry.data.nbytes)


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
    _read_tokens(file, name, header)
    if os.fstat(file.fileno()).st_size != _TOKENS_AT + 4 * header.num_tokens + header.size:
        raise DamagedError
    data = room.of(header.size)
    done = 0
    while done < header.size:
        count = file.readinto(data[done:])  # type: ignore[attr-defined]
        if not count:
            raise DamagedError
        done += count
    if _digest(data.data) != header.digest:
        raise DamagedError
    return data


def _read_header(file: BinaryIO, name: Name) -> _Header:
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        raise DamagedError
    read = file.read(_TOKENS_AT)
    header, digest = read[: _HEADER.size], read[_HEADER.size :]
    if len(read) != _TOKENS_AT or _digest(header) != digest:
        raise DamagedError
    magic, root, parent, own, is_point, *rest = _HEADER.unpack(header)
    if (magic, root, parent, own, is_point) != (_MAGIC, *name[:3], name.kind == "point"):
        raise DamagedError
    return _Header(*rest)


def _read_tokens(file: BinaryIO, name: Name, header: _Header) -> Tokens:
    read = file.read(4 * header.num_tokens)
    if len(read) != 4 * header.num_tokens:
        raise DamagedError
    tokens = np.frombuffer(read, dtype="<i4").astype(np.int32)
    if digest_of(name.parent, tokens) != name.own:
        raise DamagedError
    return tokens


def _digest(data: bytes | memoryview) -> bytes:
    return xxhash.xxh3_128_digest(data)
