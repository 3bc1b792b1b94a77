"""Reads the header of a GGUF file, and says what is wrong with a file that llama.cpp could not read."""

from __future__ import annotations

import dataclasses
import os
import struct
from pathlib import Path

from .gguf_values import architecture_of, read_whole_header

_MAGIC = b"GGUF"
_VERSION = struct.Struct("<I")


@dataclasses.dataclass(frozen=True)
class GgufHeader:
    """The facts in a header.

    Attributes:
        architecture: llama.cpp's name of the architecture; empty if there is none.
        kind: the value of general.type, ``"model"`` if it is missing.
        num_elements: the number of weights in all tensors.
        num_tensors: the number of tensors.
        num_splits: the number of files that the model is split into.
        bits: the mean number of bits per weight.
    """

    architecture: str
    kind: str
    num_elements: int
    num_tensors: int
    num_splits: int
    bits: float


def read_header(path: str | os.PathLike[str]) -> GgufHeader:
    """Read the header of a GGUF file, without its tensors.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no GGUF file, has an unknown version, or is truncated.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist: check the path, or see `specllama pull --list` for model names"
        )
    if not path.is_file():
        raise ValueError(f"{path} is not a file")
    with path.open("rb") as file:
        magic, version = file.read(len(_MAGIC)), file.read(_VERSION.size)
    if magic != _MAGIC:
        raise ValueError(f"{path} is not a GGUF file (it does not begin with the bytes {_MAGIC.decode()})")
    if version in (b"\0\0\0\2", b"\0\0\0\3"):
        raise ValueError(f"{path} is big-endian, for other processors: get the little-endian file, or convert it anew")
    if len(version) == _VERSION.size and _VERSION.unpack(version)[0] not in (2, 3):
        raise ValueError(
            f"{path}: GGUF version {_VERSION.unpack(version)[0]} is not supported: convert the model anew (versions 2 "
            "and 3 are)"
        )
    try:
        values, tensors = read_whole_header(path)
    except ValueError as error:
        size = path.stat().st_size
        raise ValueError(f"{path} is truncated or damaged: its header ends early (byte {size})") from error
    begin = min((tensor.offset for tensor in tensors.values()), default=0)
    num_elements = sum(tensor.size for tensor in tensors.values())
    kind, num_splits = values.get("general.type", b"model"), values.get("split.count", 1)
    return GgufHeader(
        architecture=architecture_of(values),
        kind=kind.decode("utf-8", "replace") if isinstance(kind, bytes) else "",
        num_elements=num_elements,
        num_tensors=len(tensors),
        num_splits=num_splits if isinstance(num_splits, int) else 1,
        bits=8 * (path.stat().st_size - begin) / num_elements if num_elements else 0.0,
    )
