"""Entries in a folder, within a limit. Several programs may use the folder at once, and any of them may be killed."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import filelock

from specllama.backend.replacing import replacing

from .entry import Data, Entry, Kind, Name, Room, Tokens
from .file import DamagedError, file_name, name_of, read_data, read_tokens, size_of_file, write_entry
from .folder import WRITER, locked, safely, write_about
from .folder import Room as RoomOfFolder
from .ram import is_beginning

_MOST_CHILDREN = 256  # blocks behind one text that are looked at
_MOST_TOKENS = 4096  # blocks whose tokens are remembered: 5 MB
_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}
_NO_FILE = {errno.EISDIR, errno.ELOOP}
_Read = TypeVar("_Read")


class Disk:
    """Entries in a folder. The entry that was unused for longest goes first. Any thread may use it.

    The folders of the entries and their files can be read by their owner alone: they hold what users wrote.

    Args:
        folder: the folder. It is made when the first entry is written.
        most_bytes: how many bytes all entries together may have, at any moment, with the one that is being written.
        on_error: is told what a user should know, such as that the disk is full.
    """

    def __init__(self, folder: str | os.PathLike[str], most_bytes: int, on_error: Callable[[str], None]) -> None:
        self.folder = Path(folder)
        self._on_error = on_error
        self._room = RoomOfFolder(self.folder, most_bytes)
        self._known: dict[Name, Tokens] = {}  # a name stands for its tokens, so this is always right
        self._patience: float | None = None

    # Reading

    def has(self, name: Name) -> bool:
        """See `Tier`."""
        return os.path.exists(self._path(name))

    def load(self, name: Name, room: Room) -> Data | None:
        """See `Tier`."""
        return self._read(name, lambda file: read_data(file, name, room))

    def children(self, root: bytes, parent: bytes, kind: Kind) -> list[tuple[Name, Tokens]]:
        """See `Tier`."""
        beginning, end = f"{parent.hex()}-", f".{kind}"
        try:
            with os.scandir(self._shard(root, parent)) as files:
                of_kind = (file.name for file in files if file.name.startswith(beginning) and file.name.endswith(end))
                found = list(itertools.islice(of_kind, _MOST_CHILDREN))
        except OSError:
            return []
        names = [name for file in found if (name := name_of(root, file)) is not None]
        return [(name, tokens) for name in names if (tokens := self._tokens(name)) is not None]

    def use(self, names: Iterable[Name]) -> None:
        """See `Tier`."""
        now = time.time_ns()
        for place, name in enumerate(names):
            with contextlib.suppress(OSError):
                os.utime(self._path(name), ns=(now, now + 1000 * place))

    def _tokens(self, name: Name) -> Tokens | None:
        tokens = self._known.get(name)
        if tokens is None and (tokens := self._read(name, lambda file: read_tokens(file, name))) is not None:
            if len(self._known) >= _MOST_TOKENS:
                self._known.clear()
            self._known[name] = tokens
        return tokens

    def _read(self, name: Name, read: Callable[[BinaryIO], _Read]) -> _Read | None:
        """What `read` makes of the entry's file; None if there is no such file, or it is damaged."""
        path = self._path(name)
        try:
            with open(path, "rb", buffering=0, opener=safely) as file:
                return read(file)
        except (FileNotFoundError, NotADirectoryError, MemoryError):  # it is gone, or larger than what is free
            return None
        except (OSError, DamagedError) as error:
            if isinstance(error, OSError) and error.errno not in _NO_FILE:
                self._on_error(f"cache_dir={self.folder} cannot be read ({_reason(error)}): prompts are read instead")
                return None
        self._on_error(
            f"a file in cache_dir={self.folder} is damaged: it is deleted, and its part of a prompt is read instead"
        )
        for gone in (path, self.folder / WRITER):  # whoever writes next must look again
            with contextlib.suppress(OSError):
                os.unlink(gone)
        return None

    # Writing

    def put(self, entries: Iterable[Entry], chain: Sequence[Name], about: Mapping[bytes, Mapping[str, Any]]) -> int:
        """Write entries of one text, in their order, as far as there is room. Returns how many are there now.

        Args:
            entries: the entries.
            chain: all entries of the text, from its beginning on. None of them is deleted.
            about: what is known of each root, for `folder.contents`.
        """
        kept, count = {self._path(name) for name in chain}, 0
        try:
            with locked(self.folder, self._patience):
                self._patience = None
                self._room.look()
                for entry in entries:
                    if not self._put(entry, kept, about):
                        break
                    count += 1
                self.use(reversed(chain))
        except filelock.Timeout:
            self._patience = 0  # another program writes for long: the next text tries again, but does not wait as long
        except (OSError, NotImplementedError) as error:  # by filelock, on a disk without locks
            is_full = isinstance(error, OSError) and error.errno in _FULL
            what = "is full" if is_full else f"cannot be written to ({_reason(error)})"
            self._on_error(f"cache_dir={self.folder} {what}: prompts are not kept there")
        return count

    def _put(self, entry: Entry, kept: Collection[str], about: Mapping[bytes, Mapping[str, Any]]) -> bool:
        path, name = self._path(entry.name), entry.name
        if os.path.exists(path):
            return True
        shard = self._shard(name.root, name.parent)
        for folder in (os.path.dirname(shard), shard):
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700)
            if os.path.islink(folder):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))  # a link leads out
        write_about(os.path.dirname(shard), about.get(name.root, {}))
        if not self._room.make(path, size_of_file(entry), kept):
            return False
        try:
            with replacing(Path(path)) as new, open(new, "wb", buffering=0, opener=safely) as file:
                write_entry(file, entry)
        except BaseException:
            self._room.delete(path)
            raise
        if name.kind == "range":  # the new block can be used in place of those that it begins with
            for other, tokens in self.children(name.root, name.parent, "range"):
                if is_beginning(tokens, entry.tokens):
                    self._room.delete(self._path(other))
        return True

    def _shard(self, root: bytes, parent: bytes) -> str:
        return os.path.join(self.folder, root.hex(), parent.hex()[:2])

    def _path(self, name: Name) -> str:
        return os.path.join(self._shard(name.root, name.parent), file_name(name))


def _reason(error: Exception) -> str:
    """Why it failed, without the file: a user is told once, not of each file."""
    return getattr(error, "strerror", None) or str(error)
