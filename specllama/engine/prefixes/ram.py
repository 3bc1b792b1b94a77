"""Entries in memory, within a limit."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable

from .entry import Data, Entry, Kind, Name, Room, Tokens

_MIB = 1 << 20


class Ram:
    """Entries in memory. The entry that was unused for longest goes first. Any thread may use it.

    Args:
        cache_ram: how many MiB all entries together may take. 0 keeps none, -1 has no limit.
    """

    def __init__(self, cache_ram: int) -> None:
        self._most_bytes = sys.maxsize if cache_ram < 0 else cache_ram * _MIB
        self._lock = threading.Lock()
        self._entries: OrderedDict[Name, Entry] = OrderedDict()  # the least recently used comes first
        self._children: dict[tuple[bytes, Kind], dict[Name, None]] = {}
        self._num_bytes = 0

    @property
    def keeps_some(self) -> bool:
        """Whether any entries are kept."""
        return self._most_bytes > 0

    @property
    def num_entries(self) -> int:
        """The number of entries."""
        return len(self._entries)

    @property
    def num_bytes(self) -> int:
        """The size of all entries in bytes."""
        return self._num_bytes

    def clear(self) -> None:
        """Drop all entries."""
        with self._lock:
            self._children.clear()
            self._entries.clear()
            self._num_bytes = 0

    def leave_parent(self) -> None:
        """Called in a forked child: another thread of the parent may have had the lock."""
        self._lock = threading.Lock()

    def has(self, name: Name) -> bool:
        """See `Tier`."""
        return name in self._entries

    def load(self, name: Name, room: Room) -> Data | None:
        """See `Tier`."""
        entry = self._entries.get(name)
        return None if entry is None else entry.data

    def children(self, root: bytes, parent: bytes, kind: Kind) -> list[tuple[Name, Tokens]]:
        """See `Tier`."""
        with self._lock:
            names = self._children.get((parent, kind), ())
            return [(name, self._entries[name].tokens) for name in names if name in self._entries]

    def use(self, names: Iterable[Name]) -> None:
        """See `Tier`."""
        with self._lock:
            for name in names:
                if name in self._entries:
                    self._entries.move_to_end(name)

    def put(self, entry: Entry, chain: Collection[Name]) -> bool:
        """Add an entry. Returns False if there is no room.

        A shorter block with the same beginning is dropped: the new one can be used in its place.

        Args:
            entry: the entry.
            chain: the entries of the same text. None of them is dropped, because the new one is of no use without them.
                It is asked for many names, so this should be fast.
        """
        with self._lock:
            if entry.name in self._entries:
                return True
            dropped = dict.fromkeys(self._shorter(entry))
            size = self._num_bytes + entry.num_bytes - sum(self._entries[name].num_bytes for name in dropped)
            for name, other in self._entries.items():
                if size <= self._most_bytes:
                    break
                if name not in chain and name not in dropped:
                    dropped[name] = None
                    size -= other.num_bytes
            if size > self._most_bytes:
                return False
            for name in dropped:
                self._drop(name)
            self._children.setdefault((entry.name.parent, entry.name.kind), {})[entry.name] = None
            self._entries[entry.name] = entry._replace(tokens=entry.tokens.copy())  # they are a part of a whole text
            self._num_bytes += entry.num_bytes
            return True

    def _shorter(self, entry: Entry) -> list[Name]:
        name, tokens = entry.name, entry.tokens
        if name.kind != "range":
            return []
        siblings = [other for other in self._children.get((name.parent, name.kind), ()) if other in self._entries]
        return [other for other in siblings if is_beginning(self._entries[other].tokens, tokens)]

    def _drop(self, name: Name) -> None:
        siblings = self._children.get((name.parent, name.kind), {})
        siblings.pop(name, None)
        if not siblings:
            self._children.pop((name.parent, name.kind), None)
        self._num_bytes -= self._entries.pop(name).num_bytes


def is_beginning(tokens: Tokens, text: Tokens) -> bool:
    """Whether a text begins with these tokens, and goes on."""
    return len(tokens) < len(text) and bool((text[: len(tokens)] == tokens).all())
