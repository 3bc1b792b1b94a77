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

_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_LENGTH = struct.Struct("<Q")
_KIND = struct.Struct("<I")
_TOKENS = "tokenizer.ggml.tokens"
_MOST_DIMENSIONS = 4  # GGML_MAX_DIMS

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """The place of a tensor in a file."""

    shape: tuple[int, ...]
    """The sizes in ggml's order: the size of a row first."""
    kind: int
    """The ggml_type."""
    offset: int
    """The offset in the file in bytes."""

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


def read_whole_header(
    path: str | os.PathLike[str], *, texts: bool = True
) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    """Read the metadata of a file, and the place of each tensor by its name.

    In the metadata, numbers are Python's, texts are bytes, arrays of numbers are NumPy's, and arrays of texts are lists
    of bytes.

    Args:
        path: the file.
        texts: whether arrays of texts are in the metadata. They take most of the time.

    Raises:
        ValueError: the header is damaged.
        OSError: the file cannot be read.
    """
    with _mapped(path) as data:
        return _Walk(data).whole(texts)


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
            ValueError: the file is damaged.
            OSError: it cannot be read.
        """
        with _mapped(self.path) as data:
            walk = _Walk(data, self.offset)
            return [walk.text() for _ in range(self.count)]

    def stored(self) -> bytes:
        """The texts as the file stores them, with their lengths. Equal texts give equal bytes, and this is much faster.

        Raises:
            ValueError: the file is damaged.
            OSError: it cannot be read.
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
        until_tokens: stop at the tokens. All files written by llama.cpp's scripts have the architecture and the sizes
            of the model before them. It takes a thousandth of the time for the whole header.

    Returns:
        The metadata, and the tokens; None if there are none.

    Raises:
        ValueError: the header is damaged.
        OSError: the file cannot be read.
    """
    with _mapped(path) as data:
        walk = _Walk(data)
        values = walk.pairs_without_texts(_TOKENS if until_tokens else None)
        place = walk.texts.get(_TOKENS)
        return values, None if place is None else StoredTexts(os.fspath(path), *place)


def _behind_texts(data: mmap.mmap, at: int, count: int) -> int:
    """The end of `count` texts that begin at the offset `at`.

    Raises:
        EOFError: they end beyond the file.
    """
    length = _LENGTH.unpack_from
    for _ in range(count):
        at += 8 + length(data, at)[0]
    if at > len(data):
        raise EOFError("a text ends behind the file")
    return at


@contextlib.contextmanager
def _mapped(path: str | os.PathLike[str]) -> Iterator[mmap.mmap]:
    """Map a file into memory. Errors of reading a header from it within the block become a ValueError.

    Raises:
        ValueError: the header is damaged.
        OSError: the file cannot be read.
    """
    if not os.path.isfile(path):  # opening a pipe would wait for ever
        raise FileNotFoundError(f"{path} is not a file: llama.cpp reads models from files only")
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            yield data
        except (struct.error, EOFError) as error:
            raise ValueError(f"{path} is truncated or damaged: it ends within its header") from error
        except (KeyError, OverflowError, MemoryError) as error:
            raise ValueError(f"{path}: the header is damaged ({error!r})") from error


def architecture_of(values: Mapping[str, Any]) -> str:
    """llama.cpp's name of the architecture; empty if the metadata do not have it as a text."""
    found = values.get("general.architecture")
    return found.decode("utf-8", "replace") if isinstance(found, bytes) else ""


def cached(read: Callable[[str], _T]) -> Callable[[str | os.PathLike[str]], _T | None]:
    """A decorator: the function reads a file again only if it has changed, and returns None if there is no file."""

    @functools.lru_cache(maxsize=8)  # every draft is read twice: before its target is opened, and after
    def kept(path: str, changed: int, size: int) -> _T | None:
        return read(path)

    @functools.wraps(read)
    def reader(path: str | os.PathLike[str]) -> _T | None:
        try:
            found = os.stat(path)
        except (ValueError, OSError):
            return None
        return kept(os.fspath(path), found.st_mtime_ns, found.st_size)

    return reader


def parts_of(path: str) -> list[str]:
    """The files of a model. If the name ends in ``-00001-of-00003.gguf``, there are three."""
    found = re.fullmatch(r"(.*)-\d{5}-of-(\d{5})\.gguf", path)
    if found is None:
        return [path]
    begin, count = found.groups()
    return [f"{begin}-{number:05}-of-{count}.gguf" for number in range(1, int(count) + 1)]


def stored(path: str | os.PathLike[str], tensor: StoredTensor, size: int) -> bytes:
    """The first `size` bytes of a tensor.

    Raises:
        ValueError: the file is too short.
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        file.seek(tensor.offset)
        found = file.read(size)
    if len(found) < size:
        raise ValueError(f"{path} is truncated")
    return found


class _Walk:
    """Reads a mapped file once, from its first metadata to its tensors."""

    def __init__(self, data: mmap.mmap, at: int = 8) -> None:  # the magic and the version take 8 bytes
        self._data = data
        self._at = at
        self.texts: dict[str, tuple[int, int]] = {}
        """The offset and the number of texts of each array that was skipped, by its name."""

    def whole(self, texts: bool) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
        (count,) = _LENGTH.unpack_from(self._data, self._at)
        values = self.pairs() if texts else self.pairs_without_texts(None)
        alignment = values.get("general.alignment", 32)
        if not isinstance(alignment, int):
            raise EOFError(f"general.alignment is {alignment!r:.60}")
        found = {}
        for _ in range(count):
            name = self.text().decode("utf-8", "replace")
            if (num_dimensions := self._number("I")) > _MOST_DIMENSIONS:
                raise EOFError(f"a tensor of {num_dimensions} dimensions")
            shape = tuple(self._number("Q") for _ in range(num_dimensions))
            found[name] = StoredTensor(shape, self._number("I"), self._number("Q"))
        begin = -(-self._at // max(1, alignment)) * alignment
        return values, {name: dataclasses.replace(one, offset=begin + one.offset) for name, one in found.items()}

    def pairs(self) -> dict[str, Any]:
        self._number("Q")  # the number of tensors
        found = {}
        for _ in range(self._number("Q")):
            key = self.text().decode("utf-8", "replace")  # a key that llama.cpp does not know may be any bytes
            found[key] = self._reader(self._number("I"))()
        return found

    def pairs_without_texts(self, until: str | None) -> dict[str, Any]:
        """The metadata without arrays of texts. Stops at the array called `until`."""
        self._number("Q")  # the number of tensors
        found = {}
        for _ in range(self._number("Q")):
            key, kind = self.text().decode("utf-8", "replace"), self._number("I")
            if kind == _ARRAY and _KIND.unpack_from(self._data, self._at)[0] == _STRING:
                self._number("I")
                count = self._number("Q")
                if count > len(self._data):
                    raise EOFError("an array is longer than the file")
                self.texts[key] = (self._at, count)
                if key == until:
                    break
                self._at = _behind_texts(self._data, self._at, count)
            else:
                found[key] = self._reader(kind)()
        return found

    def _reader(self, kind: int) -> Callable[[], Any]:
        if kind == _STRING:
            return self.text
        if kind == _ARRAY:
            return self._array
        code = _SCALARS[kind]
        return lambda: self._number(code)

    def _number(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self._data, self._at)
        self._at += struct.calcsize("<" + code)
        return value

    def text(self) -> bytes:
        """The next text."""
        (length,) = _LENGTH.unpack_from(self._data, self._at)
        self._at += 8 + length
        if self._at > len(self._data):
            raise EOFError("a text ends behind the file")
        return self._data[self._at - length : self._at]

    def _array(self) -> Any:
        kind, count = self._number("I"), self._number("Q")
        if count > len(self._data):
            raise EOFError("an array is longer than the file")
        if kind == _STRING:
            return [self.text() for _ in range(count)]
        if kind == _ARRAY:  # llama.cpp cannot read one, either
            raise EOFError("an array of arrays")
        size = struct.calcsize("<" + _SCALARS[kind]) * count
        part = self._data[self._at : self._at + size]
        if len(part) < size:
            raise EOFError("an array ends behind the file")
        self._at += size
        return np.frombuffer(part, np.dtype(_SCALARS[kind]).newbyteorder("<"))
