"""Which types the tensors of a model have, or will get from llama.cpp's quantizer, and the bytes that they take.

The quantizer does not give every tensor the type that was asked for. Some tensors always get more bits. If the rows of
a matrix do not consist of whole blocks of a type, the matrix gets another type, which is often much larger.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import subprocess
from collections.abc import Iterable, Mapping

from specllama.backend.child import python_command

from .catalog import FILE_TYPES
from .gguf_values import StoredTensor, UnusableFileError, parts_of, read_whole_header
from .tensor_types import TYPES, bytes_of

CHILD = "from specllama.models._quantize_worker import main; sys.exit(main(sys.argv[1:]))"
_SECONDS = 600.0  # the time limit for planning, which only reads headers
_KINDS = {name: kind for kind, (name, _, _) in TYPES.items()}
_LARGE_BLOCK = 256
_IN_PLACE = 8.5  # the most bits per weight of the types that llama.cpp takes where rows are not of whole blocks of 256
_IN_SMALL_PLACE = 16.0  # the same for blocks of 32


@dataclasses.dataclass(frozen=True)
class Contents:
    """The types of the tensors of a file.

    Attributes:
        counts: the number of tensors of each type, by the type's name; empty if the types are not known.
        size: the bytes of all tensors; an upper limit if their types are not known.
        odd: the number of matrices with rows that are not of whole blocks of the type that was asked for.
        rows: the lengths of these rows.
    """

    counts: Mapping[str, int]
    size: int
    odd: int = 0
    rows: tuple[int, ...] = ()

    def __str__(self) -> str:
        """The size and the types in words."""
        types = sorted(self.counts.items(), key=lambda item: -item[1])
        size = f"{self.size / 1e9:.2f} GB" if self.size >= 1e9 else f"{self.size / 1e6:.3g} MB"
        return size + (": tensors of " + ", ".join(f"{name} ({count})" for name, count in types) if types else "")

    def fallback(self, file_type: str) -> str | None:
        """A note for the user if matrices get another type because of the lengths of their rows; else None."""
        if not self.odd:
            return None
        lengths = ", ".join(map(str, self.rows[:4])) + (", ..." if len(self.rows) > 4 else "")
        return (
            f"{file_type} stores {block_of(file_type)} numbers together, and {self.odd} matrices have rows of "
            f"{lengths}: llama.cpp takes other types for them, and the file becomes larger"
        )


def contents_of(path: str | os.PathLike[str]) -> Contents:
    """The types of the tensors in a file.

    Raises:
        UnusableFileError: the file is damaged.
        OSError: the file cannot be read.
    """
    tensors = read_whole_header(path, texts=False)[1].values()
    counts = collections.Counter(TYPES[tensor.kind][0] for tensor in tensors)
    return Contents(counts, sum(tensor.num_bytes for tensor in tensors))


def kinds_of(path: str | os.PathLike[str]) -> frozenset[str]:
    """The names of the types that the tensors of a model have, of all its parts; empty if one is missing or damaged."""
    try:
        headers = [read_whole_header(part, texts=False)[1] for part in parts_of(os.fspath(path))]
    except (OSError, UnusableFileError):
        return frozenset()
    return frozenset(TYPES[tensor.kind][0] for tensors in headers for tensor in tensors.values())


def planned(path: str | os.PathLike[str], file_types: Iterable[str]) -> dict[str, Contents]:
    """The tensor types that a model will have, by file type. If llama.cpp is too old to plan, only a size is estimated.

    Raises:
        UnusableFileError: the model is damaged.
        OSError: the file cannot be read.
    """
    file_types = list(file_types)
    tensors = read_whole_header(path, texts=False)[1]
    said = _said_by_llama_cpp(os.fspath(path), file_types)
    return {one: _of_type(tensors, one, said.get(one, {})) for one in file_types}


def block_of(file_type: str) -> int:
    """How many numbers a block has, in the type of most of a file's weights; 256 for Q4_K_M."""
    if "_K" in file_type or file_type == "IQ4_XS":
        return _LARGE_BLOCK
    return 1 if FILE_TYPES[file_type] >= _IN_SMALL_PLACE else 32


def _of_type(tensors: Mapping[str, StoredTensor], file_type: str, said: Mapping[str, int]) -> Contents:
    is_known, block = said.keys() == tensors.keys(), block_of(file_type)
    matrices = {name: one for name, one in tensors.items() if len(one.shape) > 1}
    odd = {name: one for name, one in matrices.items() if one.shape[0] % block and said.get(name) != _KINDS["F32"]}
    rows = collections.Counter(one.shape[0] for one in odd.values())
    lengths = tuple(length for length, _ in rows.most_common())
    if is_known:
        size = sum(bytes_of(said[name], one.shape) for name, one in tensors.items())
        return Contents(collections.Counter(TYPES[kind][0] for kind in said.values()), size, len(odd), lengths)
    bits = FILE_TYPES[file_type]
    larger = max(bits, _IN_PLACE if block == _LARGE_BLOCK else _IN_SMALL_PLACE)
    size = sum(one.num_bytes for name, one in tensors.items() if name not in matrices)
    size += sum(int(one.size * (larger if name in odd else bits) / 8) for name, one in matrices.items())
    return Contents({}, size, len(odd), lengths)


def _said_by_llama_cpp(path: str, file_types: Iterable[str]) -> dict[str, dict[str, int]]:
    """By file type, the ggml_type that llama.cpp plans for each tensor. Errors are ignored: quantizing reports them."""
    command = python_command(CHILD, path, ",".join(file_types))
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace", timeout=_SECONDS
        )
    except subprocess.TimeoutExpired:
        return {}
    found, whole = collections.defaultdict[str, dict[str, int]](dict), set()
    for line in done.stdout.splitlines():
        word, _, rest = line.partition(" ")
        if word == "planned":
            whole.add(rest)
        elif word == "tensor":
            file_type, kind, name = rest.split(" ", 2)
            if kind.upper() in _KINDS:
                found[file_type][name] = _KINDS[kind.upper()]
    return {one: types for one, types in found.items() if one in whole}
