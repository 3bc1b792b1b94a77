"""A folder of entries: its files, the room in it, and what it holds of which model."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import filelock

from specllama.backend.replacing import PARTIAL, replacing

from .file import is_file_name

ABOUT = "about.json"
_LOCK = ".lock"
WRITER = ".writer"
"""The file that says who has written last."""
PATIENCE = 5.0
"""Seconds to wait for another program that writes."""
_MOST_ABOUT = 65_536  # bytes that are read of what is known of a model


class File(NamedTuple):
    """The file of an entry."""

    used: int
    """When the entry was used last, in nanoseconds: the time of the file's last change."""
    path: str
    size: int


class Content(NamedTuple):
    """What a folder holds of one model."""

    about: Mapping[str, Any]
    num_files: int
    num_bytes: int
    used: float
    """When one of the files was used last, in seconds since 1970."""


class Room:
    """The room in a folder. Only who has the folder's lock may use it.

    Args:
        folder: the folder, which must exist.
        most_bytes: how many bytes all files of entries together may have.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self._mark = os.urandom(8).hex()
        self._used = 0
        self._sizes: dict[str, int] = {}  # by path
        self._by_use: list[File] = []  # the file that was unused for longest comes last; newer files are not in it

    def look(self) -> None:
        """Look which files there are, unless nobody else has written since the last time."""
        writer, mark = os.path.join(self._folder, WRITER), f"{self._mark}-{os.getpid()}".encode()  # not a fork's
        if _beginning(writer, len(mark)) == mark:
            return
        sizes = {}
        for path in [path for root in _roots(self._folder) for path in _paths_of_root(root)]:
            if path.endswith(PARTIAL):  # of a program that was killed: whoever writes has the lock
                self.delete(path)
            elif path in self._sizes:  # to ask for the sizes of 10,000 files takes a tenth of a second
                sizes[path] = self._sizes[path]
            else:
                sizes |= {file.path: file.size for file in _files([path])}
        self._know(sizes)
        with open(writer, "wb", opener=safely) as file:
            file.write(mark)

    def make(self, path: str, size: int, kept: Collection[str]) -> bool:
        """Take room for a file. Deletes the files that were unused for longest, where there is too little room.

        Args:
            path: the file.
            size: its size.
            kept: files that are not deleted.

        Returns:
            Whether there is enough room.
        """
        is_new = size > self._most_bytes
        while self._used + size > self._most_bytes:
            if self._by_use:
                oldest = self._by_use.pop()
                if oldest.path not in kept and list(_files([oldest.path])) in ([oldest], []):  # else it was used since
                    self.delete(oldest.path)
            elif is_new:
                return False
            else:
                self._by_use, is_new = sorted(_files(self._sizes), reverse=True), True
                self._know({file.path: file.size for file in self._by_use})
        self._used += size - self._sizes.get(path, 0)
        self._sizes[path] = size
        return True

    def _know(self, sizes: dict[str, int]) -> None:
        self._sizes = sizes
        self._used = sum(sizes.values())

    def delete(self, path: str) -> None:
        """Delete a file."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(path)
        self._used -= self._sizes.pop(path, 0)


@contextlib.contextmanager
def locked(folder: Path, patience: float | None = None) -> Iterator[None]:
    """A block in which no other program writes into the folder, which is made if it is missing.

    Args:
        folder: the folder.
        patience: how many seconds to wait for another program; None for `PATIENCE`.

    Raises:
        filelock.Timeout: another program has the lock for long. (This is an OSError.)
        OSError: the folder cannot be used.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with filelock.FileLock(folder / _LOCK, timeout=PATIENCE if patience is None else patience, mode=0o600):
        yield


def contents(folder: str | os.PathLike[str]) -> list[Content]:
    """What a folder of entries holds, by model, the newest first.

    Raises:
        OSError: the folder cannot be read.
    """
    found = []
    for root in _roots(folder):
        if files := list(_files(_paths_of_root(root))):
            used = max(file.used for file in files) / 1e9
            found.append(Content(read_about(root), len(files), sum(file.size for file in files), used))
    return sorted(found, key=lambda content: -content.used)


def empty(folder: str | os.PathLike[str]) -> int:
    """Delete all entries in a folder. Other files stay. Returns how many bytes the entries had.

    Raises:
        OSError: a file cannot be deleted, or another program writes into the folder for long.
    """
    size = 0
    with locked(Path(folder)):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            os.unlink(os.path.join(folder, WRITER))  # who writes next must look again
        for root in _roots(folder):
            files = list(_files(_paths_of_root(root)))
            if not files:  # it may be another program's
                continue
            for file in files:
                os.unlink(file.path)
                size += file.size
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(root, ABOUT))
            for part in [*_shards(root), root]:
                with contextlib.suppress(OSError):  # somebody else has put something there
                    os.rmdir(part)
    return size


def write_about(root: str, about: Mapping[str, Any]) -> None:
    """Write what is known of a model into its folder, unless it is there.

    Raises:
        OSError: the file cannot be written.
    """
    path = os.path.join(root, ABOUT)
    if not os.path.exists(path):
        with replacing(Path(path)) as new, open(new, "wb", opener=safely) as file:
            file.write(json.dumps(about).encode())


def read_about(root: str) -> Mapping[str, Any]:
    """What is known of the model of a folder; empty if that is damaged."""
    try:
        found = json.loads(_beginning(os.path.join(root, ABOUT), _MOST_ABOUT))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def safely(path: str, flags: int) -> int:
    """An opener of files that their owner alone can read. It follows no link, and does not wait at a pipe."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o600)


def _beginning(path: str, size: int) -> bytes:
    """The first bytes of a file; empty if it is missing."""
    try:
        with open(path, "rb", buffering=0, opener=safely) as file:
            return file.read(size) or b""
    except FileNotFoundError:
        return b""


def _roots(folder: str | os.PathLike[str]) -> list[str]:
    return [entry.path for entry in os.scandir(folder) if _is_hex(entry.name, 32) and _is_folder(entry)]


def _files(paths: Iterable[str]) -> Iterator[File]:
    """Those of the files that are there."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found = os.lstat(path)
            yield File(found.st_mtime_ns, path, found.st_size)


def _paths_of_root(root: str) -> Iterator[str]:
    """The files of entries of one model, and unfinished ones. No other files are, wherever a link leads."""
    for folder in (root, *_shards(root)):
        for file in os.scandir(folder):
            is_entry = folder != root and is_file_name(file.name)
            if (is_entry or _is_unfinished(file.name)) and not file.is_dir(follow_symlinks=False):
                yield file.path


def _shards(root: str) -> list[str]:
    return [entry.path for entry in os.scandir(root) if _is_hex(entry.name, 2) and _is_folder(entry)]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False)


def _is_unfinished(name: str) -> bool:
    """Whether `replacing` has named a file so that is to become one of ours."""
    whole = name.removeprefix(".").removesuffix(PARTIAL).rpartition(".")[0]
    return name.startswith(".") and name.endswith(PARTIAL) and (whole == ABOUT or is_file_name(whole))


def _is_hex(name: str, length: int) -> bool:
    return len(name) == length and all(letter in "0123456789abcdef" for letter in name)
