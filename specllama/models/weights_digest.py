"""A digest of the weights in a file. Only samples are read, so that it takes milliseconds for a file of any size."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .gguf_values import StoredTensor, parts_of, read_whole_header

_ARCHITECTURE = "general.architecture"
_OF_NO_WEIGHT = ("tokenizer.", "split.", "general.")
"""The beginnings of the names of metadata that do not change what the weights compute. Copies may differ in these."""
_ALL = 1 << 20  # bytes that are read of all tensors together
_PLACES = 4  # samples of a tensor that is not read as a whole


class Digest:
    """A digest of the weights in a file. The tensors are read when `digest` is called.

    Args:
        path: the file, or the first part of a split one.
        values: the metadata in the file's header.
        tensors: the place of each tensor in the file, by name.

    Attributes:
        values: the metadata that say how the weights are used.
    """

    def __init__(self, path: str, values: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> None:
        self.values = {name: value for name, value in values.items() if _is_of_weights(name)}
        self._path = path
        self._tensors = tensors

    def changed_by(self, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """The ``kv_overrides`` that change how the weights are used, without those that repeat the file's value."""
        named = {name: value for name, value in overrides.items() if _is_of_weights(name)}
        return {name: value for name, value in named.items() if not _same(self.values.get(name), value)}

    def digest(self) -> str:
        """The digest, in hexadecimal. Copies with other names have the same digest.

        Files with different weights have different digests, unless they differ only between the samples of large
        tensors. Call this while the path still has the file that was loaded.

        Raises:
            OSError: a file cannot be read.
            UnusableFileError: another part of a split file is damaged.
        """
        files = {self._path: self._tensors}
        for part in parts_of(self._path):
            if part not in files:
                files[part] = read_whole_header(part)[1]
        places = sorted(
            (name, tensor, path, extent)
            for path, tensors in files.items()
            for name, tensor, extent in _with_extents(path, tensors)
        )
        of_each = max(1, _ALL // max(1, len(places)))
        found = hashlib.blake2b(digest_size=8)
        values = {name: _as_json(value) for name, value in self.values.items()}
        found.update(json.dumps(values, sort_keys=True).encode())
        with contextlib.ExitStack() as stack:
            opened = {path: stack.enter_context(open(path, "rb", buffering=0)) for path in files}
            for name, tensor, path, extent in places:
                found.update(f"{name} {tensor.shape} {tensor.kind} ".encode())
                for start, size in _pieces(extent, of_each):
                    opened[path].seek(tensor.offset + start)
                    found.update(opened[path].read(size))
        return found.hexdigest()


def digest_of_file(path: str) -> str:
    """The digest of a file that is not loaded as a model, such as a LoRA adapter.

    Raises:
        OSError: the file cannot be read.
        UnusableFileError: the file is damaged.
    """
    return Digest(path, *read_whole_header(path)).digest()


def _is_of_weights(name: str) -> bool:
    return name == _ARCHITECTURE or not name.startswith(_OF_NO_WEIGHT)


def _with_extents(path: str, tensors: Mapping[str, StoredTensor]) -> Iterator[tuple[str, StoredTensor, int]]:
    """Each tensor, with the number of bytes up to the next one."""
    ordered = sorted(tensors.items(), key=lambda item: item[1].offset)
    ends = [*(tensor.offset for _, tensor in ordered[1:]), os.path.getsize(path)]
    for (name, tensor), end in zip(ordered, ends, strict=True):
        yield name, tensor, max(0, end - tensor.offset)


def _pieces(extent: int, most: int) -> Iterator[tuple[int, int]]:
    """The samples of a tensor: where each one begins, and its size. Both are in bytes."""
    if extent <= most:
        yield 0, extent
        return
    size = -(-most // _PLACES)
    for place in range(_PLACES):
        yield (extent - size) * place // (_PLACES - 1), size


def _same(of_file: Any, given: Any) -> bool:
    if isinstance(given, str):
        return bool(of_file == given.encode())
    if isinstance(given, float):  # a file stores 32 bits of a float
        return isinstance(of_file, float) and bool(np.float32(of_file) == np.float32(given))
    return type(of_file) is type(given) and bool(of_file == given)


def _as_json(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else repr(value)
