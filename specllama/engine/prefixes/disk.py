"""Entries in a folder, within a limit. Several programs may use the folder at once, and any of them may be killed."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import filelock

from specllama.backend.replacing import PARTIAL

from .entry import Data, Entry, Kind, Name, Tokens
from .file import DamagedError, Room, file_name, name_of, read_data, read_tokens, size_of_file, write_entry
from .folder import ABOUT, for_user_alone, locked, write_about
from .folder import Room as RoomOfFolder
from .ram import is_beginning

_MOST_CHILDREN = 256  # blocks behind one text that are looked at
_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}
_Read = TypeVar("_Read")


class Disk:
    """Entries in a folder. The entry that was unused for longest goes first. Any thread may use it.

    The folders of the entries and their files can be read by their owner alone: they hold what users wrote.

    Args:
        folder: the folder. It is made when the first entry is written.
        most_bytes: how many bytes all files together may have, at any moment.
        on_error: is told what a user should know, such as that the disk is full.
    """

    def __init__(self, folder: str | os.PathLike[str], most_bytes: int, on_error: Callable[[str], None]) -> None:
        self.folder = Path(folder)
        self._on_error = on_error
        self._room = RoomOfFolder(self.folder, most_bytes)
        self._of_thread = threading.local()  # the memory into which a thread reads

    # Reading

    def has(self, name: Name) -> bool:
        """See `Tier`."""
        return os.path.exists(self._path(name))

    def load(self, name: Name) -> Data | None:
        """See `Tier`."""
        if not hasattr(self._of_thread, "room"):
            self._of_thread.room = Room()
        room: Room = self._of_thread.room
        return self._read(name, lambda file: read_data(file, name, room))

    def children(self, root: bytes, parent: bytes, kind: Kind) -> list[tuple[Name, Tokens]]:
        """See `Tier`."""
        beginning = f"{parent.hex()}-"
        try:
            files = os.listdir(self._shard(root, parent))
        except OSError:
            return []
        named = [name_of(root, file) for file in files if file.startswith(beginning)]
        of_kind = [name for name in named if name is not None and name.kind == kind][:_MOST_CHILDREN]
        return [(name, tokens) for name in of_kind if (tokens := self._tokens(name)) is not None]

    def use(self, names: Iterable[Name]) -> None:
        """See `Tier`."""
        now = time.time_ns()
        for place, name in enumerate(names):
            with contextlib.suppress(OSError):
                os.utime(self._path(name), ns=(now, now + 1000 * place))

    def _tokens(self, name: Name) -> Tokens | None:
        return self._read(name, lambda file: read_tokens(file, name))

    def _read(self, name: Name, read: Callable[[BinaryIO], _Read]) -> _Read | None:
        """What `read` makes of the entry's file; None if there is no such file, or it is damaged."""
        path = self._path(name)
        try:
            with open(path, "rb", buffering=0) as file:
                return read(file)
        except FileNotFoundError:
            return None
        except DamagedError as error:
            self._on_error(
                f"a file in cache_dir={self.folder} is damaged ({error}): it is deleted, and its part of a prompt is "
                "read instead"
            )
            with contextlib.suppress(OSError):
                os.unlink(path)
        except OSError as error:
            self._on_error(f"cache_dir={self.folder} cannot be read ({error}): prompts are read instead")
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
            with locked(self.folder):
                self._room.look()
                for entry in entries:
                    if not self._put(entry, kept, about):
                        break
                    count += 1
                self.use(reversed(chain))
        except filelock.Timeout:
            pass  # another program writes for long: the next text tries again
        except OSError as error:
            what = "is full" if error.errno in _FULL else f"cannot be written to ({error})"
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
        write_about(os.path.join(os.path.dirname(shard), ABOUT), about.get(name.root, {}))
        if not self._room.make(path, size_of_file(entry), kept):
            return False
        unfinished = path + PARTIAL
        try:
            with open(unfinished, "wb", buffering=0, opener=for_user_alone) as file:
                write_entry(file, entry)
            os.replace(unfinished, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(unfinished)
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
