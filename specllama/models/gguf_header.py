"""Reads the header of a GGUF file: what it is, before llama.cpp is trusted with it.

Not by gguf.GGUFReader: it takes 40 times as long, because it makes an array of each of 150,000 tokens, and where a file
is damaged it raises an IndexError of NumPy instead of saying what is wrong.
"""

from __future__ import annotations

import dataclasses
import math
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import IO

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
# Scalar value types of the format: type id -> struct code.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_MAX_STRING = 1 << 26
_MAX_DIMENSIONS = 4


@dataclasses.dataclass(frozen=True)
class GgufHeader:
    """What the header says. `kind` is general.type: "model" unless the file says otherwise."""

    architecture: str
    kind: str
    num_elements: int
    num_tensors: int
    num_splits: int


def read_header(path: str | os.PathLike[str]) -> GgufHeader:
    """Read the header of a GGUF file, without its tensors.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: not a GGUF file, one of an unknown version, or a truncated one.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist: check the path, or see `specllama pull --list` for model names"
        )
    if not path.is_file():
        raise ValueError(f"{path} is not a file")
    with path.open("rb") as file:
        if file.read(4) != _MAGIC:
            raise ValueError(f"{path} is not a GGUF file (it does not begin with the bytes {_MAGIC.decode()})")
        try:
            return _Reader(file, path.stat().st_size).header()
        except (struct.error, EOFError, UnicodeDecodeError, MemoryError) as error:
            raise ValueError(f"{path} is truncated or damaged: its header ends early ({error})") from error
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


class _Reader:
    """Walks through the header of one open file, whose magic is already read."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._size = size

    def header(self) -> GgufHeader:
        version = self._unpack("I")
        if version not in (2, 3):
            raise ValueError(f"GGUF version {version} is not supported: convert the model anew (versions 2 and 3 are)")
        num_tensors, num_pairs = self._unpack("Q"), self._unpack("Q")
        if max(num_tensors, num_pairs) > self._size:
            raise EOFError("more entries than bytes")
        wanted: dict[str, object] = {"general.architecture": "", "general.type": "model", "split.count": 1}
        for _ in range(num_pairs):
            key = self._string()
            read = self._value_reader(self._unpack("I"))
            value = read()
            if key in wanted:
                wanted[key] = value
        num_elements = sum(self._tensor_elements() for _ in range(num_tensors))
        architecture, kind, num_splits = wanted.values()
        return GgufHeader(str(architecture), str(kind), num_elements, num_tensors, int(str(num_splits)))

    def _tensor_elements(self) -> int:
        self._string()
        num_dimensions = self._unpack("I")
        if num_dimensions > _MAX_DIMENSIONS:
            raise ValueError(
                f"damaged header: a tensor has {num_dimensions} dimensions, and {_MAX_DIMENSIONS} is the most"
            )
        shape = [self._unpack("Q") for _ in range(num_dimensions)]
        self._skip(4 + 8)  # type and offset
        return math.prod(shape)

    def _value_reader(self, kind: int) -> Callable[[], object]:
        if kind == _STRING:
            return self._string
        if kind == _ARRAY:
            return self._skip_array
        if kind not in _SCALARS:
            raise ValueError(f"damaged header: value type {kind} does not exist")
        return lambda: self._unpack(_SCALARS[kind])

    def _skip_array(self) -> None:
        kind, count = self._unpack("I"), self._unpack("Q")
        if kind in _SCALARS:
            self._skip(count * struct.calcsize("<" + _SCALARS[kind]))
            return
        if count > self._size:
            raise EOFError("an array longer than the file")
        read = self._value_reader(kind)
        for _ in range(count):
            read()

    def _string(self) -> str:
        length = self._unpack("Q")
        if length > _MAX_STRING:
            raise EOFError(f"a string of {length} bytes")
        # Tokens need not be valid UTF-8; keys are ASCII.
        return self._read(length).decode("utf-8", errors="replace")

    def _unpack(self, code: str) -> int:
        return struct.unpack("<" + code, self._read(struct.calcsize("<" + code)))[0]  # type: ignore[no-any-return]

    def _read(self, length: int) -> bytes:
        data = self._file.read(length)
        if len(data) < length:
            raise EOFError(f"byte {self._size}")
        return data

    def _skip(self, length: int) -> None:
        if self._file.tell() + length > self._size:
            raise EOFError(f"byte {self._size}")
        self._file.seek(length, os.SEEK_CUR)
