"""Entries in memory, within a limit."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable

from .entry import Data, Entry, Kind, Name, Tokens

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
        with self._lock:
            return self._size()

    def clear(self) -> None:
        """Drop all entries."""
        with self._lock:
            self._children.clear()
            self._entries.clear()

    def leave_parent(self) -> None:
        """Called in a forked child: another thread of the parent may have had the lock."""
        self._lock = threading.Lock()

    def has(self, name: Name) -> bool:
        """See `Tier`."""
        return name in self._entries

    def load(self, name: Name) -> Data | None:
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
        """
        with self._lock:
            room = self._most_bytes - entry.num_bytes
            if entry.name in self._entries or room < 0:
                return entry.name in self._entries
            for name in self._shorter(entry):
                self._drop(name)
            size = self._size()
            for name in [name for name in self._entries if name not in chain]:
                if size <= room:
                    break
                size -= self._entries[name].num_bytes
                self._drop(name)
            if size > room:
                return False
            self._children.setdefault((entry.name.parent, entry.name.kind), {})[entry.name] = None
            self._entries[entry.name] = entry
            return True

    def _size(self) -> int:
        return sum(entry.num_bytes for entry in self._entries.values())

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
        self._entries.pop(name, None)


def is_beginning(tokens: Tokens, text: Tokens) -> bool:
    """Whether a text begins with these tokens, and goes on."""
    return len(tokens) < len(text) and bool((text[: len(tokens)] == tokens).all())
