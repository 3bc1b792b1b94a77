"""The store of an engine: entries in memory and in a folder, and when they are copied there."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specllama.backend.brief import brief
from specllama.engine.forks import told_of_forks
from specllama.engine.options import checked_gib, checked_index
from specllama.engine.writer import Writer

from .disk import Disk
from .entry import Entry, Name, Tier
from .memory import Memory, TierName
from .ram import Ram

_GIB = 1 << 30
_TOGETHER = 32 << 20  # bytes of entries that are written at once
_SHARE = 0.01  # of a text's time: how long its end may wait until entries are written


@dataclasses.dataclass(frozen=True)
class StoreOptions:
    """What a store may take.

    Attributes:
        cache_ram: MiB in memory; 0 for none, -1 for no limit.
        cache_dir: a folder that outlives the process; None for none.
        cache_disk: GiB in this folder.
    """

    cache_ram: int = 0
    cache_dir: str | None = None
    cache_disk: float = 8.0

    @classmethod
    def checked(cls, cache_ram: Any, cache_dir: Any, cache_disk: Any) -> StoreOptions:
        """Check a user's values.

        Raises:
            TypeError: a value has another type.
            ValueError: a value is out of range, or the folder cannot be used.
        """
        return cls(
            _checked_ram(cache_ram), _checked_dir(cache_dir), checked_gib("cache_disk", cache_disk, "in cache_dir")
        )

    @property
    def keeps_some(self) -> bool:
        """Whether anything is kept."""
        return self.cache_ram != 0 or self.cache_dir is not None


def _checked_ram(value: Any) -> int:
    number = checked_index("cache_ram", value, "an int: MiB for earlier texts; 0 keeps none, -1 has no limit")
    if number < -1:
        raise ValueError(
            f"cache_ram={brief(number)} is below -1: give MiB for earlier texts; 0 keeps none, -1 has no limit"
        )
    return number


def _checked_dir(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"cache_dir={brief(value)} must be the path of a folder for earlier texts, or None")
    path = os.path.abspath(os.path.expanduser(os.fsdecode(value)))
    if not os.fspath(value) or "\0" in path or (os.path.exists(path) and not os.path.isdir(path)):
        raise ValueError(f"cache_dir={brief(value)} is no folder: give one for earlier texts, or a path for a new one")
    return path


class Store:
    """Copies of what memories held of earlier texts. Any thread may use it.

    Args:
        options: what it may take.

    Attributes:
        ram: the entries in memory.
        disk: the entries in a folder; None without a folder.
        tiers: both, by name.
        num_recalled: how many texts went on from copies.
    """

    def __init__(self, options: StoreOptions) -> None:
        self.ram = Ram(options.cache_ram)
        self.disk: Disk | None = None
        self.tiers: dict[TierName, Tier] = {}
        if self.ram.keeps_some:
            self.tiers["ram"] = self.ram
        if options.cache_dir is not None:
            self.disk = Disk(options.cache_dir, int(options.cache_disk * _GIB), self._note)
            self.tiers["disk"] = self.disk
        self.num_recalled = 0
        self._about: dict[bytes, Mapping[str, Any]] = {}
        self._notes = queue.SimpleQueue[str]()
        self._writer = Writer("prefixes")
        told_of_forks(self)

    def leave_parent(self) -> None:
        """Called in a forked child, which lacks the thread that writes."""
        self.ram.leave_parent()
        self._writer = Writer("prefixes")

    @property
    def keeps_some(self) -> bool:
        """Whether anything is kept."""
        return bool(self.tiers)

    def know(self, root: bytes, about: Mapping[str, Any]) -> None:
        """Remember what a root stands for. It is shown to whoever looks at the folder."""
        self._about.setdefault(root, about)

    def notes(self) -> Iterable[str]:
        """What the user should be told since the last call. Another thread may have noted it."""
        with contextlib.suppress(queue.Empty):  # another thread may take the last one
            while True:
                yield self._notes.get_nowait()

    def _note(self, message: str) -> None:
        self._notes.put(message)

    def keep(self, memory: Memory, *, only_points: bool = False, seconds: float = 0.0) -> None:
        """Keep what a memory holds and the store lacks.

        Args:
            memory: the memory. No text uses it.
            only_points: whether to keep only the states of a memory that cannot be cut.
            seconds: how long the text took. A part of this time may be spent on waiting for the disk.
        """
        memory.sequence.keep(memory.sequence.num_tokens)  # the memory may hold more, if other code has used it
        chain, latest = dict.fromkeys(memory.chain()), time.monotonic() + _SHARE * seconds
        together: list[Entry] = []
        for entry in memory.missing(only_points=only_points):
            chain[entry.name] = None
            is_kept = self.ram.keeps_some and self.ram.put(entry, chain)
            if self.disk is not None and self._writer.has_room(entry.num_bytes, latest):
                together.append(entry)
                is_kept = True
            if not is_kept:
                break
            if sum(each.num_bytes for each in together) >= _TOGETHER:
                self._write(together, chain)
                together = []
        self.ram.use(reversed(chain))
        self._write(together, chain)

    def _write(self, entries: Sequence[Entry], chain: Iterable[Name]) -> None:
        if self.disk is not None and entries:
            size = sum(entry.num_bytes for entry in entries)
            self._writer.submit(size, self.disk.put, tuple(entries), tuple(chain), self._about)

    def clear(self) -> None:
        """Drop the entries in memory. Those in the folder stay."""
        self.ram.clear()

    def flush(self) -> None:
        """Wait until all entries are written."""
        self._writer.flush()
