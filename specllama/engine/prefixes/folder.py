"""A folder of entries: its files, the room in it, and what it holds of which model."""

from __future__ import annotations

import contextlib
import heapq
import json
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import filelock

from specllama.backend.replacing import PARTIAL

from .file import name_of

ABOUT = "about.json"
_LOCK = ".lock"
_WRITER = ".writer"
_PATIENCE = 5.0  # seconds to wait for another program that writes


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
        self._files: dict[str, int] = {}  # sizes, by path
        self._oldest: list[File] = []

    def look(self) -> None:
        """Look at all files, unless nobody else has written since the last time."""
        writer = self._folder / _WRITER
        try:
            if writer.read_bytes() == self._mark.encode():
                return
        except FileNotFoundError:
            pass
        self._files.clear()
        self._oldest.clear()
        for file in _files(self._folder):
            if file.path.endswith(PARTIAL):  # of a program that was killed: whoever writes has the lock
                os.unlink(file.path)
            else:
                self._add(file)
        self._used = sum(self._files.values())
        writer.write_bytes(self._mark.encode())

    def _add(self, file: File) -> None:
        self._files[file.path] = file.size
        heapq.heappush(self._oldest, file)

    def make(self, path: str, size: int, kept: Collection[str]) -> bool:
        """Take room for a file. Deletes the files that were unused for longest, where there is too little room.

        Args:
            path: the file.
            size: its size.
            kept: files that are not deleted.

        Returns:
            Whether there is enough room.
        """
        passed = []
        while self._used + size > self._most_bytes and self._oldest:
            oldest = heapq.heappop(self._oldest)
            if oldest.path not in self._files:
                continue
            used = _used(oldest.path)
            if used is not None and used > oldest.used:  # it was used since it was looked at
                heapq.heappush(self._oldest, oldest._replace(used=used))
            elif oldest.path in kept:
                passed.append(oldest)
            else:
                self.delete(oldest.path)
        for file in passed:
            heapq.heappush(self._oldest, file)
        if self._used + size > self._most_bytes:
            return False
        self._used += size
        self._add(File(_used(path) or 0, path, size))
        return True

    def delete(self, path: str) -> None:
        """Delete a file."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        self._used -= self._files.pop(path, 0)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """A block in which no other program writes into the folder, which is made if it is missing.

    Raises:
        filelock.Timeout: another program has the lock for long. (This is an OSError.)
        OSError: the folder cannot be used.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with filelock.FileLock(folder / _LOCK, timeout=_PATIENCE, mode=0o600):
        yield


def contents(folder: str | os.PathLike[str]) -> list[Content]:
    """What a folder of entries holds, by model, the newest first.

    Raises:
        OSError: the folder cannot be read.
    """
    found = []
    for root in _roots(folder):
        if files := list(_files_of_root(root)):
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
        (Path(folder) / _WRITER).unlink(missing_ok=True)  # who writes next must look again
        for root in _roots(folder):
            files = list(_files_of_root(root))
            if not files:  # it may be another program's
                continue
            for file in files:
                os.unlink(file.path)
                size += file.size
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(root, ABOUT))
            for part in [*(entry.path for entry in os.scandir(root)), root]:
                with contextlib.suppress(OSError):  # somebody else has put something there
                    os.rmdir(part)
    return size


def write_about(path: str, about: Mapping[str, Any]) -> None:
    """Write what is known of a model into its folder, unless it is there.

    Raises:
        OSError: the file cannot be written.
    """
    if not os.path.exists(path):
        with open(path, "wb", opener=for_user_alone) as file:
            file.write(json.dumps(about).encode())


def read_about(root: str) -> Mapping[str, Any]:
    """What is known of the model of a folder; empty if that is damaged."""
    try:
        with open(os.path.join(root, ABOUT), "rb") as file:
            found = json.loads(file.read(65_536))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def for_user_alone(path: str, flags: int) -> int:
    """An opener of files that their owner alone can read."""
    return os.open(path, flags, 0o600)


def _used(path: str) -> int | None:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None


def _roots(folder: str | os.PathLike[str]) -> list[str]:
    return [entry.path for entry in os.scandir(folder) if entry.is_dir() and _is_hex(entry.name, 32)]


def _files(folder: Path) -> Iterator[File]:
    for root in _roots(folder):
        yield from _files_of_root(root)


def _files_of_root(root: str) -> Iterator[File]:
    """The files of entries of one model, unfinished ones, too."""
    for shard in os.scandir(root):
        if shard.is_dir() and _is_hex(shard.name, 2):
            for file in os.scandir(shard.path):
                if name_of(b"", file.name.removesuffix(PARTIAL)) is not None:
                    with contextlib.suppress(FileNotFoundError):
                        found = file.stat()
                        yield File(found.st_mtime_ns, file.path, found.st_size)


def _is_hex(name: str, length: int) -> bool:
    return len(name) == length and all(letter in "0123456789abcdef" for letter in name)
