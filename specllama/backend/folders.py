"""Walks through folders. File systems hold surprises: loops of links, names that are no text, files that vanish."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

_MOST_ENTRIES = 20_000  # the most entries that one walk looks at: the folder may be the root of the file system
_NO_WAITING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
NOT_THERE = (OSError, ValueError)
"""The errors of looking at a path. ValueError: no file can have this name."""


def files_in(folder: str | os.PathLike[str], ending: str = "", *, depth: int = 0) -> Iterator[str]:
    """The paths of the files in a folder, sorted by name. No errors are raised: unreadable entries are left out.

    Args:
        folder: the folder, which may be missing.
        ending: the end of the files' names, in lower case; upper case counts as lower case.
        depth: how many levels of folders below this folder are searched, too. A folder that is reached twice, by links,
            is searched once.
    """
    seen = set[tuple[int, int]]()
    left = _MOST_ENTRIES

    def walked(one: str, levels: int) -> Iterator[str]:
        nonlocal left
        try:
            found = os.stat(one)
            if (found.st_dev, found.st_ino) in seen:
                return
            seen.add((found.st_dev, found.st_ino))
            entries = sorted(_first(one, left), key=lambda entry: entry.name)
        except NOT_THERE:
            return
        left -= len(entries)
        for entry in entries:
            mode = _mode(entry)
            if stat.S_ISREG(mode) and entry.name.lower().endswith(ending):
                yield entry.path
            elif stat.S_ISDIR(mode) and levels:
                yield from walked(entry.path, levels - 1)

    yield from walked(os.fspath(folder), depth)


def folders_in(folder: str | os.PathLike[str]) -> list[str]:
    """The paths of the folders in a folder, sorted by name. No errors are raised, as in `files_in`."""
    try:
        return sorted(entry.path for entry in _first(os.fspath(folder), _MOST_ENTRIES) if stat.S_ISDIR(_mode(entry)))
    except NOT_THERE:
        return []


def beginning_of(path: str | os.PathLike[str], size: int) -> bytes:
    """The first `size` bytes of a file.

    Raises:
        OSError: the file cannot be read, or is no regular file. A pipe is refused at once, without waiting for it.
        ValueError: no file can have this name.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | _NO_WAITING)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{os.fspath(path)} is not a file")
        return file.read(size)


def _first(folder: str, count: int) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return [entry for _, entry in zip(range(count), entries, strict=False)]


def _mode(entry: os.DirEntry[str]) -> int:
    """The mode (type and permissions) of an entry, links followed; 0 if it cannot be read."""
    try:
        return entry.stat().st_mode
    except NOT_THERE:
        return 0
