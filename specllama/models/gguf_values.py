"""Reads the header of a GGUF file as a whole, tokens included, as quickly as Python can.

Not by gguf.GGUFReader: it takes 40 times as long, because it makes an array of each of 150,000 tokens, and where a file
is damaged it raises an IndexError of NumPy instead of saying what is wrong.
"""

from __future__ import annotations

import dataclasses
import math
import mmap
import os
import re
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_LENGTH = struct.Struct("<Q")
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
    if not os.path.isfile(path):  # one that reads from a pipe would wait for ever
        raise FileNotFoundError(f"{path} is not a file: llama.cpp reads models from files only")
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _Walk(data).whole()
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

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 8  # behind magic and version

    def whole(self) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
        (count,) = _LENGTH.unpack_from(self._data, self._at)
        values = self.pairs()
        alignment = values.get("general.alignment", 32)
        if not isinstance(alignment, int):
            raise EOFError(f"general.alignment is {alignment!r:.60}")
        found = {}
        for _ in range(count):
            name = self._text().decode("utf-8", "replace")
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
            key = self._text().decode("utf-8", "replace")  # llama.cpp takes any bytes, and knows the key or not
            found[key] = self._reader(self._number("I"))()
        return found

    def _reader(self, kind: int) -> Callable[[], Any]:
        if kind == _STRING:
            return self._text
        if kind == _ARRAY:
            return self._array
        code = _SCALARS[kind]
        return lambda: self._number(code)

    def _number(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self._data, self._at)
        self._at += struct.calcsize("<" + code)
        return value

    def _text(self) -> bytes:
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
            return [self._text() for _ in range(count)]
        if kind == _ARRAY:  # llama.cpp reads none
            raise EOFError("an array of arrays")
        size = struct.calcsize("<" + _SCALARS[kind]) * count
        part = self._data[self._at : self._at + size]
        if len(part) < size:
            raise EOFError("an array ends behind the file")
        self._at += size
        return np.frombuffer(part, np.dtype(_SCALARS[kind]).newbyteorder("<"))
