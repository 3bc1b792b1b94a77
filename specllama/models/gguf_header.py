"""Reads the header of a GGUF file, and says what is wrong with a file that llama.cpp could not read."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from .gguf_values import UnusableFileError, architecture_of, read_whole_header


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
        UnusableFileError: the file is no GGUF file, has an unknown version, or is truncated.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist: check the path, or see `specllama pull --list` for model names"
        )
    if not path.is_file():
        raise UnusableFileError(f"{path} is not a file")
    values, tensors = read_whole_header(path, texts=False)
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
