"""Reads the header of a GGUF file as a whole, tokens included, as quickly as Python can.

Not by gguf.GGUFReader: it takes 40 times as long, because it makes an array of each of 150,000 tokens, and where a file
is damaged it raises an IndexError of NumPy instead of saying what is wrong.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import mmap
import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_LENGTH = struct.Struct("<Q")
_KIND = struct.Struct("<I")
_TOKENS = "tokenizer.ggml.tokens"
_MOST_DIMENSIONS = 4  # GGML_MAX_DIMS


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """Where a tensor is in a file."""

    shape: tuple[int, ...]
    """In ggml's order: the size of a row first."""
    kind: int
    """Its ggml_type."""
    offset: int
    """In bytes."""

    @property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)


def read_whole_header(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    """The pairs of the header, and where each tensor is, by its name.

    Of the pairs numbers are numbers, texts bytes, arrays of numbers NumPy's, and arrays of texts lists of bytes.

    Raises:
        ValueError: the header is damaged.
        OSError: the file cannot be read.
    """
    with _mapped(path) as data:
        return _Walk(data).whole()


@dataclasses.dataclass(frozen=True)
class StoredTexts:
    """Where an array of texts is in a file, such as the tokens of a vocabulary."""

    path: str
    offset: int
    """Of the first text, in bytes."""
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
        """The same as they are stored, with their lengths: equal for equal texts, and read much sooner.

        Raises:
            ValueError, OSError: see `read`.
        """
        with _mapped(self.path) as data:
            return data[self.offset : _behind_texts(data, self.offset, self.count)]

    def beginning(self, size: int) -> bytes:
        """The first bytes of what is stored, of these texts and of what comes behind them."""
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            return file.read(size)


def read_without_texts(
    path: str | os.PathLike[str], *, until_tokens: bool = False
) -> tuple[dict[str, Any], StoredTexts | None]:
    """The pairs of a header but for its arrays of texts, and where the tokens are.

    Args:
        path: the file.
        until_tokens: only those before the tokens. In all files that llama.cpp's scripts have written what a model is
            and how large stands there. It takes a thousandth of the time that the whole header takes.

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
    """Where so many texts end that begin at an offset."""
    length = _LENGTH.unpack_from
    for _ in range(count):
        at += 8 + length(data, at)[0]
    if at > len(data):
        raise EOFError("a text ends behind the file")
    return at


@contextlib.contextmanager
def _mapped(path: str | os.PathLike[str]) -> Iterator[mmap.mmap]:
    """A file's bytes.

    Raises:
        ValueError: what is read of them is no header.
        OSError: the file cannot be read.
    """
    if not os.path.isfile(path):  # one that reads from a pipe would wait for ever
        raise FileNotFoundError(f"{path} is not a file: llama.cpp reads models from files only")
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            yield data
        except (struct.error, EOFError, KeyError, OverflowError, MemoryError) as error:
            raise ValueError(f"{path}: the header is damaged ({error!r})") from error


def architecture_of(values: Mapping[str, Any]) -> str:
    """Whose pairs these are; empty if they do not say it as a text."""
    found = values.get("general.architecture")
    return found.decode("utf-8", "replace") if isinstance(found, bytes) else ""


def parts_of(path: str) -> list[str]:
    """The files of a model: one, or those that ``-00001-of-00003.gguf`` begins."""
    found = re.fullmatch(r"(.*)-\d{5}-of-(\d{5})\.gguf", path)
    if found is None:
        return [path]
    begin, count = found.groups()
    return [f"{begin}-{number:05}-of-{count}.gguf" for number in range(1, int(count) + 1)]


def stored(path: str | os.PathLike[str], tensor: StoredTensor, size: int) -> bytes:
    """The first `size` bytes of a tensor.

    Raises:
        ValueError: the file ends before.
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        file.seek(tensor.offset)
        found = file.read(size)
    if len(found) < size:
        raise ValueError(f"{path} is truncated")
    return found


class _Walk:
    """Goes once through the pairs of a mapped file."""

    def __init__(self, data: mmap.mmap, at: int = 8) -> None:  # behind magic and version
        self._data = data
        self._at = at
        self.texts: dict[str, tuple[int, int]] = {}
        """Of the arrays of texts that were passed over: the offset, and how many texts there are."""

    def whole(self) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
        (count,) = _LENGTH.unpack_from(self._data, self._at)
        values = self.pairs()
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
        self._number("Q")  # of tensors
        found = {}
        for _ in range(self._number("Q")):
            key = self.text().decode("utf-8", "replace")  # llama.cpp takes any bytes, and knows the key or not
            found[key] = self._reader(self._number("I"))()
        return found

    def pairs_without_texts(self, until: str | None) -> dict[str, Any]:
        """All but arrays of texts, up to the one of this name."""
        self._number("Q")  # of tensors
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
        if kind == _ARRAY:  # llama.cpp reads none
            raise EOFError("an array of arrays")
        size = struct.calcsize("<" + _SCALARS[kind]) * count
        part = self._data[self._at : self._at + size]
        if len(part) < size:
            raise EOFError("an array ends behind the file")
        self._at += size
        return np.frombuffer(part, np.dtype(_SCALARS[kind]).newbyteorder("<"))
