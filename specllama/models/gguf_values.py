"""Reads the whole header of a GGUF file, as fast as Python can.

gguf.GGUFReader is not used: it takes 40 times as long, because it makes an array for each of 150,000 tokens, and for a
damaged file it raises an IndexError that does not say what is wrong.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import mmap
import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from specllama.backend.folders import NOT_THERE

from .tensor_types import bytes_of

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_LENGTH = struct.Struct("<Q")
_KIND = struct.Struct("<I")
_TOKENS = "tokenizer.ggml.tokens"
_MOST_DIMENSIONS = 4  # GGML_MAX_DIMS
_MOST_SHOWN = 60  # characters of a name in a message
# A header states its own sizes. These limits bound the time for reading a file that was found and not named by a user.
# The largest known header has 260,000 tokens, 510,000 merges, some thousand tensors, and less than 100 values.
_MOST_BYTES = 1 << 26
_MOST_VALUES, _MOST_TENSORS = 1 << 12, 1 << 15
_MOST_TEXTS = 1 << 21  # texts in all arrays together
_MOST_UNTIL_TOKENS = 1 << 19  # texts in the array of tokens and in all arrays before it

_T = TypeVar("_T")


class UnusableFileError(ValueError):
    """A file cannot be used. The message names it, and says why.

    All functions that read a GGUF file raise this error or an OSError, and no other.
    """


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """The place of a tensor in a file, and its type."""

    shape: tuple[int, ...]
    """The sizes in ggml's order: the size of a row first. There is at least one size, and each is 1 or more."""
    kind: int
    """The ggml_type, one of `tensor_types.TYPES`."""
    offset: int
    """The offset in the file in bytes."""

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """The number of bytes in the file."""
        return bytes_of(self.kind, self.shape)


def read_whole_header(
    path: str | os.PathLike[str], *, texts: bool = True
) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    """Read the metadata of a file, and the place of each tensor by its name.

    In the metadata, numbers are Python's, texts are bytes, arrays of numbers are NumPy's, and arrays of texts are lists
    of bytes.

    Args:
        path: the file.
        texts: whether to read arrays of texts, too, which takes most of the time.

    Raises:
        UnusableFileError: the header is damaged, or the file ends before the end of a tensor.
        OSError: the file cannot be read.
    """
    with _mapped(path) as data:
        values, tensors = _Walk(data).whole(texts)
    _require_within(path, tensors)
    return values, tensors


def _require_within(path: str | os.PathLike[str], tensors: Mapping[str, StoredTensor]) -> None:
    """Check that all tensors lie within their file. A download may have been cut off.

    Raises:
        UnusableFileError: a tensor ends behind the end of the file.
    """
    size = os.path.getsize(path)
    for name, tensor in tensors.items():
        if (end := tensor.offset + tensor.num_bytes) > size:
            raise UnusableFileError(
                f"{path} is truncated or damaged: it has {size} bytes, and needs more than that: its tensor "
                f"{name[:_MOST_SHOWN]} ends at byte {end}"
            )


@dataclasses.dataclass(frozen=True)
class StoredTexts:
    """The place of an array of texts in a file, such as the tokens of a vocabulary."""

    path: str
    offset: int
    """The offset of the first text in bytes."""
    count: int

    def read(self) -> list[bytes]:
        """The texts.

        Raises:
            UnusableFileError: the file is damaged.
            OSError: the file cannot be read.
        """
        with _mapped(self.path) as data:
            return _Walk(data, self.offset).texts_of(self.count)

    def stored(self) -> bytes:
        """The bytes that store the texts and their lengths. To compare these is much faster than `read` and comparing.

        Raises:
            UnusableFileError: the file is damaged.
            OSError: the file cannot be read.
        """
        with _mapped(self.path) as data:
            return data[self.offset : _behind_texts(data, self.offset, self.count)]

    def beginning(self, size: int) -> bytes:
        """The first `size` bytes of the stored texts.

        If the texts are shorter, what follows them in the file is included.
        """
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            return file.read(size)


def read_without_texts(
    path: str | os.PathLike[str], *, until_tokens: bool = False
) -> tuple[dict[str, Any], StoredTexts | None]:
    """Read the metadata without arrays of texts, and the place of the tokens.

    Args:
        path: the file.
        until_tokens: stop at the tokens, which takes a thousandth of the time for the whole header. All files that
            llama.cpp's scripts write have the architecture and the sizes of the model before the tokens.

    Returns:
        The metadata, and the place of the tokens, which is None if there are no tokens.

    Raises:
        UnusableFileError: the header is damaged.
        OSError: the file cannot be read.
    """
    with _mapped(path) as data:
        walk = _Walk(data, most_texts=_MOST_UNTIL_TOKENS if until_tokens else _MOST_TEXTS)
        values = walk.pairs_without_texts(_TOKENS if until_tokens else None)
        place = walk.texts.get(_TOKENS)
        return values, None if place is None else StoredTexts(os.fspath(path), *place)


def _behind_texts(data: mmap.mmap, at: int, count: int) -> int:
    """The end of `count` texts that begin at the offset `at`.

    Raises:
        EOFError: the texts end beyond the file.
    """
    length = _LENGTH.unpack_from
    for _ in range(count):
        at += 8 + length(data, at)[0]
    if at > len(data):
        raise EOFError("a text ends behind the file")
    return at


@contextlib.contextmanager
def _mapped(path: str | os.PathLike[str]) -> Iterator[mmap.mmap]:
    """Map the beginning of a file, with its header, into memory. Errors in the block are raised with the file's name.

    Raises:
        UnusableFileError: the header is damaged, or is larger than any header.
        OSError: the file cannot be read.
    """
    if not os.path.isfile(path):  # opening a pipe would wait for ever
        raise FileNotFoundError(f"{path} is not a file: llama.cpp reads models from files only")
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        _require_known_form(path, file.read(8))
        with mmap.mmap(file.fileno(), min(size, _MOST_BYTES), access=mmap.ACCESS_READ) as data:
            try:
                yield data
            except (struct.error, EOFError, OverflowError) as error:  # OverflowError: an offset is too large
                why = "" if size < _MOST_BYTES else f", or is larger than {_MOST_BYTES >> 20} MiB"
                raise UnusableFileError(
                    f"{path} is truncated or damaged: its header ends early (byte {size}){why}"
                ) from error
            except _HeaderError as error:
                raise UnusableFileError(f"{path} is damaged: its header has {error}") from error


class _HeaderError(Exception):
    """A header states an impossible value."""


def _require_known_form(path: str | os.PathLike[str], begins: bytes) -> None:
    """Check the first eight bytes of a file: the magic and the version.

    Raises:
        UnusableFileError: the file is no GGUF file, or has an unknown version.
    """
    magic, version = begins[:4], begins[4:]
    if magic != _MAGIC:
        raise UnusableFileError(f"{path} is not a GGUF file (it does not begin with the bytes {_MAGIC.decode()})")
    if version in (b"\0\0\0\2", b"\0\0\0\3"):
        raise UnusableFileError(
            f"{path} is big-endian, for other processors: get the little-endian file, or convert it anew"
        )
    if len(version) == _KIND.size and _KIND.unpack(version)[0] not in (2, 3):
        raise UnusableFileError(
            f"{path}: GGUF version {_KIND.unpack(version)[0]} is not supported: convert the model anew (versions 2 and "
            "3 are)"
        )


def text_in(values: Mapping[str, Any], name: str) -> str:
    """A text of the metadata; empty if they do not have it as a text."""
    found = values.get(name)
    return found.decode("utf-8", "replace") if isinstance(found, bytes) else ""


def architecture_of(values: Mapping[str, Any]) -> str:
    """llama.cpp's name of the architecture; empty if the metadata do not have it as a text."""
    return text_in(values, "general.architecture")


def tokens_in(values: Mapping[str, Any]) -> list[bytes]:
    """The texts of all tokens; empty if the metadata do not have them as texts."""
    found = values.get(_TOKENS)
    return found if isinstance(found, list) else []


def cached(read: Callable[[str], _T]) -> Callable[[str | os.PathLike[str]], _T | None]:
    """A decorator: a file is read again only if the file has changed. The result is None if there is no file."""

    @functools.lru_cache(maxsize=8)  # every draft is read twice: before its target is opened, and after
    def kept(path: str, changed: int, size: int) -> _T | None:
        return read(path)

    @functools.wraps(read)
    def reader(path: str | os.PathLike[str]) -> _T | None:
        try:
            found = os.stat(path)
        except NOT_THERE:
            return None
        return kept(os.fspath(path), found.st_mtime_ns, found.st_size)

    return reader


def parts_of(path: str) -> list[str]:
    """The files of a model. If the name ends in ``-00001-of-00003.gguf``, there are three files."""
    found = re.fullmatch(r"(.*)-\d{5}-of-(\d{5})\.gguf", path)
    if found is None:
        return [path]
    begin, count = found.groups()
    if not int(count):
        return [path]
    return [f"{begin}-{number:05}-of-{count}.gguf" for number in range(1, int(count) + 1)]


def stored(path: str | os.PathLike[str], tensor: StoredTensor) -> bytes:
    """The bytes of a tensor.

    Raises:
        UnusableFileError: the file has become shorter since its header was read.
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        file.seek(tensor.offset)
        found = file.read(tensor.num_bytes)
    if len(found) < tensor.num_bytes:
        raise UnusableFileError(f"{path} is truncated")
    return found


class _Walk:
    """Reads a mapped file once, from its first metadata to its tensors.

    Each count that the file states is checked before a loop or an allocation depends on it.
    """

    def __init__(self, data: mmap.mmap, at: int = 8, *, most_texts: int = _MOST_TEXTS) -> None:
        self._data = data
        self._at = at  # the offset of the next byte to read; the magic and the version take the first 8 bytes
        self._most_texts = self._left = most_texts
        self.texts: dict[str, tuple[int, int]] = {}
        """The offset and the number of texts of each array that was skipped, by the array's name."""

    def whole(self, texts: bool) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
        (count,) = _LENGTH.unpack_from(self._data, self._at)
        values = self.pairs() if texts else self.pairs_without_texts(None)
        alignment = values.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise _HeaderError(f"general.alignment {alignment!r:.60}")
        found = {}
        for _ in range(_few(count, _MOST_TENSORS, "tensors")):
            name = self.text().decode("utf-8", "replace")
            found[name] = self._tensor(name)
        begin = -(-self._at // alignment) * alignment
        return values, {name: StoredTensor(shape, kind, begin + at) for name, (shape, kind, at) in found.items()}

    def _tensor(self, name: str) -> tuple[tuple[int, ...], int, int]:
        """The shape of the next tensor, its type, and its offset from the end of the header."""
        if (num_dimensions := self._number("I")) > _MOST_DIMENSIONS:
            raise _HeaderError(f"a tensor of {num_dimensions} dimensions")
        *shape, kind, offset = self._numbers(f"{num_dimensions}QIQ")
        try:
            bytes_of(kind, shape or [1])
        except ValueError as error:
            raise _HeaderError(f"the tensor {name[:_MOST_SHOWN]} {error}") from None
        return tuple(shape or [1]), kind, offset

    def pairs(self) -> dict[str, Any]:
        found = {}
        for key, kind in self._keys():
            found[key] = self._value(kind)
        return found

    def pairs_without_texts(self, until: str | None) -> dict[str, Any]:
        """The metadata without arrays of texts. Stops at the array called `until`."""
        found = {}
        for key, kind in self._keys():
            if kind == _ARRAY and _KIND.unpack_from(self._data, self._at)[0] == _STRING:
                self._number("I")
                count = self._many(self._number("Q"))
                self.texts[key] = (self._at, count)
                if key == until:
                    break
                self._at = _behind_texts(self._data, self._at, count)
            else:
                found[key] = self._value(kind)
        return found

    def _keys(self) -> Iterator[tuple[str, int]]:
        """Each name of the metadata, with the type of its value. The caller must read it before the next name."""
        self._number("Q")  # the number of tensors
        for _ in range(_few(self._number("Q"), _MOST_VALUES, "values")):
            key = self.text().decode("utf-8", "replace")  # a key that llama.cpp does not know may be any bytes
            yield key, self._number("I")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        return self._array() if kind == _ARRAY else self._number(_code_of(kind))

    def _number(self, code: str) -> Any:
        return self._numbers(code)[0]

    def _numbers(self, codes: str) -> tuple[Any, ...]:
        found = struct.unpack_from("<" + codes, self._data, self._at)
        self._at += struct.calcsize("<" + codes)
        return found

    def text(self) -> bytes:
        """The next text."""
        (length,) = _LENGTH.unpack_from(self._data, self._at)
        self._at += 8 + length
        if self._at > len(self._data):
            raise EOFError("a text ends behind the file")
        return self._data[self._at - length : self._at]

    def texts_of(self, count: int) -> list[bytes]:
        """The next `count` texts."""
        data, at, length = self._data, self._at, _LENGTH.unpack_from
        found = []
        for _ in range(count):  # does the same as `text`, in a third of the time
            begin = at + 8
            at = begin + length(data, at)[0]
            found.append(data[begin:at])
        if at > len(data):
            raise EOFError("a text ends behind the file")
        self._at = at
        return found

    def _array(self) -> Any:
        kind, count = self._numbers("IQ")
        if kind == _STRING:
            return self.texts_of(self._many(count))
        if kind == _ARRAY:  # llama.cpp cannot read arrays of arrays, either
            raise _HeaderError("an array of arrays")
        code = _code_of(kind)
        begin, self._at = self._at, self._at + struct.calcsize("<" + code) * count
        if self._at > len(self._data):
            raise EOFError("an array ends behind the file")
        return np.frombuffer(self._data[begin : self._at], np.dtype(code).newbyteorder("<"))

    def _many(self, count: int) -> int:
        """Returns `count`, and subtracts it from the number of texts that the header may still have."""
        self._left -= count
        if self._left < 0:
            raise _HeaderError(f"arrays of more than {self._most_texts} texts")
        return count


def _few(count: int, most: int, what: str) -> int:
    if count > most:
        raise _HeaderError(f"{count} {what}, and may have {most}")
    return count


def _code_of(kind: int) -> str:
    if kind not in _SCALARS:
        raise _HeaderError(f"a value of the type {kind}, which does not exist")
    return _SCALARS[kind]
