"""A short name for the weights in a file, of which only a part is read: it takes milliseconds, whatever their size."""

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
"""What the names of metadata begin with that say nothing of what the weights compute. Copies differ in it."""
_ALL = 1 << 20  # bytes of all tensors together that are read
_PLACES = 4  # of a tensor of which not all is read


class Digest:
    """What a file says of its weights. Its tensors are read when the digest is asked for.

    Args:
        path: the file, the first one if it is one of several.
        values: the metadata of its header.
        tensors: where its tensors are.
    """

    def __init__(self, path: str, values: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> None:
        self.values = {name: value for name, value in values.items() if _is_of_weights(name)}
        """The metadata that say how the weights are used."""
        self._path = path
        self._tensors = tensors

    def changed_by(self, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Those of ``kv_overrides`` that say another thing than the file of how the weights are used."""
        named = {name: value for name, value in overrides.items() if _is_of_weights(name)}
        return {name: value for name, value in named.items() if not _same(self.values.get(name), value)}

    def digest(self) -> str:
        """The same for copies of a file under other names, and for its parts. Another one if any tensor is another.

        Of a large tensor it sees a change in some places only. Read it while the file is that which was loaded.

        Raises:
            OSError: a file cannot be read.
            ValueError: a further one of several is damaged.
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
        values = {name: _shown(value) for name, value in self.values.items()}
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
    """The digest of a file that is not loaded as a model, such as a LoRA adapter. See `Digest`.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged.
    """
    return Digest(path, *read_whole_header(path)).digest()


def _is_of_weights(name: str) -> bool:
    return name == _ARCHITECTURE or not name.startswith(_OF_NO_WEIGHT)


def _with_extents(path: str, tensors: Mapping[str, StoredTensor]) -> Iterator[tuple[str, StoredTensor, int]]:
    """Each tensor, and how many bytes there are up to the next one."""
    ordered = sorted(tensors.items(), key=lambda item: item[1].offset)
    ends = [*(tensor.offset for _, tensor in ordered[1:]), os.path.getsize(path)]
    for (name, tensor), end in zip(ordered, ends, strict=True):
        yield name, tensor, max(0, end - tensor.offset)


def _pieces(extent: int, most: int) -> Iterator[tuple[int, int]]:
    """Where a tensor is read, and how many bytes."""
    if extent <= most:
        yield 0, extent
        return
    size = -(-most // _PLACES)
    for place in range(_PLACES):
        yield (extent - size) * place // (_PLACES - 1), size


def _same(of_file: Any, given: Any) -> bool:
    if isinstance(given, str):
        return bool(of_file == given.encode())
    if isinstance(given, float):  # a file has 32 bits of it
        return isinstance(of_file, float) and bool(np.float32(of_file) == np.float32(given))
    return type(of_file) is type(given) and bool(of_file == given)


def _shown(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else repr(value)
