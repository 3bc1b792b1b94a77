"""One memory and the store: what is copied out of it, and what is put into it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from specllama import _core
from specllama.engine.position import is_of_this_process, num_common

from .entry import BLOCK, Data, Entry, Name, Room, Tier, Tokens, blocks_of, digest_of

TierName = Literal["ram", "disk"]
LEAST_GAIN = 16
"""The least tokens that a copy must save. Fewer are decoded in one batch, nearly as fast."""


class _Part(NamedTuple):
    """A part of a text that the store has."""

    name: Name
    tokens: Tokens
    """The tokens of the part: the block's, or only its first ones."""


@dataclasses.dataclass(frozen=True)
class _Found:
    """What the store has of a text, from its beginning on."""

    num_tokens: int = 0
    ranges: Sequence[_Part] = ()
    point: _Part | None = None


@dataclasses.dataclass(frozen=True)
class Memory:
    """A memory: a sequence, and what its content depends on besides tokens.

    Attributes:
        sequence: the sequence.
        root: the digest of all that the memory is computed with.
        tiers: where entries are kept, by name, the fastest first.
    """

    sequence: _core.Sequence
    root: bytes
    tiers: dict[TierName, Tier]

    # Out of the memory

    def chain(self) -> list[Name]:
        """The names of the ranges of what the memory holds, from its beginning on. The store may lack some."""
        if not self.sequence.decoder.copies_ranges:
            return []
        held = _lasting(self.sequence.tokens())
        return [Name(self.root, parent, own, "range") for parent, own, _, _ in blocks_of(self.root, held)]

    def missing(self, *, only_points: bool = False) -> Iterator[Entry]:
        """Copy what the memory holds and the store lacks, one entry after the other.

        Args:
            only_points: whether ranges are left out, because they are copied when another text takes the memory.
        """
        decoder, held = self.sequence.decoder, _lasting(self.sequence.tokens())
        if not decoder.can_copy or len(held) < LEAST_GAIN:
            return
        if decoder.copies_ranges and not only_points:
            yield from self._missing_ranges(held)
        if decoder.needs_points:
            yield from self._missing_points(held)

    def _missing_ranges(self, held: Tokens) -> Iterator[Entry]:
        for parent, own, start, tokens in blocks_of(self.root, held):
            name = Name(self.root, parent, own, "range")
            is_of_use = len(tokens) >= LEAST_GAIN or self.sequence.decoder.needs_points
            if is_of_use and not self._is_kept(name):
                data = self.sequence.copy_range(start, start + len(tokens))
                if data is None:
                    return
                yield Entry(name, tokens, data)

    def _missing_points(self, held: Tokens) -> Iterator[Entry]:
        ends = {*self.sequence.copied_points, len(held)}
        for parent, _, start, tokens in blocks_of(self.root, held):
            for end in sorted(end for end in ends if start < end <= start + len(tokens)):
                before = tokens[: end - start]
                name = Name(self.root, parent, digest_of(parent, before), "point")
                if not self._is_kept(name) and (data := self.sequence.copy_point(end)) is not None:
                    yield Entry(name, before, data)

    def _is_kept(self, name: Name) -> bool:
        """Whether the tier has an entry that keeps it for longest."""
        return [*self.tiers.values()][-1].has(name)

    # Into the memory

    def recall(self, text: Tokens) -> Counter[TierName] | None:
        """Put what the store has of a text into the memory, if that saves enough.

        Args:
            text: the tokens that the memory is to hold. The memory holds a beginning of them, and nothing else.

        Returns:
            How many tokens came from each tier; None if the memory stayed as it was.
        """
        sequence, here = self.sequence, self.sequence.num_tokens
        if not sequence.decoder.can_copy or len(text) < here + LEAST_GAIN:
            return None
        found = self._find(text)
        if found.num_tokens < here + LEAST_GAIN:
            return None
        self._use(found)
        # What cannot be cut is put back as a whole. Else blocks are put behind whole blocks: then the cells of the
        # memory are in the order of the tokens.
        kept = 0 if sequence.decoder.needs_points else here // BLOCK * BLOCK
        sequence.keep(kept)
        kept = sequence.num_tokens
        if kept % BLOCK:
            sequence.keep(0)
            kept = 0
        gained: Counter[TierName] = Counter()
        with contextlib.closing(self._loaded(found.ranges[kept // BLOCK :])) as loaded:
            for part, tier, data in loaded:
                if data is None or not sequence.put_range(data, part.tokens):
                    break
                gained[tier] += max(0, min(len(part.tokens), sequence.num_tokens - here))
        if found.point is not None:
            self._put_point(found, text, gained)
        return gained

    def _put_point(self, found: _Found, text: Tokens, gained: Counter[TierName]) -> None:
        sequence, whole = self.sequence, found.num_tokens
        is_complete = not sequence.decoder.copies_ranges or sequence.num_tokens == whole
        name = found.point.name if is_complete and found.point is not None else None
        tier, data = ("ram", None) if name is None else self._load(name, Room())
        if data is None or not sequence.put_point(data, text[:whole]):
            sequence.keep(0)
            gained.clear()
        elif not sequence.decoder.copies_ranges:
            gained[tier] += whole

    def _has(self, name: Name) -> bool:
        return any(tier.has(name) for tier in self.tiers.values())

    def _load(self, name: Name, room: Room) -> tuple[TierName, Data | None]:
        for tier_name, tier in self.tiers.items():
            if (data := tier.load(name, room)) is not None:
                return tier_name, data
        return "ram", None

    def _loaded(self, parts: Sequence[_Part]) -> Generator[tuple[_Part, TierName, Data | None], None, None]:
        """The data of parts. While one is put into the memory, another thread reads the next one."""
        rooms = Room(), Room()
        with concurrent.futures.ThreadPoolExecutor(1) as executor:

            def load(place: int) -> concurrent.futures.Future[tuple[TierName, Data | None]] | None:
                room = rooms[place % 2]
                return executor.submit(self._load, parts[place].name, room) if place < len(parts) else None

            after = load(0)
            for place, part in enumerate(parts):
                before, after = after, load(place + 1)
                assert before is not None
                yield (part, *before.result())

    def _use(self, found: _Found) -> None:
        points = () if found.point is None else (found.point.name,)
        names = [*points, *(part.name for part in reversed(found.ranges))]  # a beginning is used more than its end
        for tier in self.tiers.values():
            tier.use(names)

    def _find(self, text: Tokens) -> _Found:
        decoder = self.sequence.decoder
        ranges = self._find_ranges(text) if decoder.copies_ranges else []
        most = sum(len(part.tokens) for part in ranges) if decoder.copies_ranges else len(text)
        if not decoder.needs_points:
            return _Found(most, ranges)
        point = self._find_point(text[:most])
        if point is None:
            return _Found()
        num_tokens, part = point
        return _Found(num_tokens, _cut(ranges, num_tokens), part)

    def _find_ranges(self, text: Tokens) -> list[_Part]:
        parts = []
        for parent, own, _, tokens in blocks_of(self.root, text):
            name = Name(self.root, parent, own, "range")
            if len(tokens) == BLOCK and self._has(name):
                parts.append(_Part(name, tokens))
                continue
            longest = max(self._beginnings(parent, tokens), key=lambda part: len(part.tokens), default=None)
            return [*parts, longest] if longest is not None else parts
        return parts

    def _beginnings(self, parent: bytes, tokens: Tokens) -> Iterator[_Part]:
        """Blocks that have a beginning in common with these tokens."""
        for tier in self.tiers.values():
            for name, others in tier.children(self.root, parent, "range"):
                if count := num_common(tokens, others):
                    yield _Part(name, tokens[:count])

    def _find_point(self, text: Tokens) -> tuple[int, _Part] | None:
        """The last place of a text whose state the store has."""
        for parent, _, start, tokens in reversed(list(blocks_of(self.root, text))):
            ends = {
                len(others): name
                for tier in self.tiers.values()
                for name, others in tier.children(self.root, parent, "point")
                if num_common(tokens, others) == len(others)
            }
            if ends:
                end = max(ends)
                return start + end, _Part(ends[end], tokens[:end])
        return None


def _lasting(text: Tokens) -> Tokens:
    """The text up to the first embedding that no other process knows."""
    places = np.flatnonzero(is_of_this_process(text))
    return text[: places[0]] if places.size else text


def _cut(ranges: Sequence[_Part], num_tokens: int) -> list[_Part]:
    """The ranges of the first tokens of a text."""
    parts = []
    for part in ranges:
        if num_tokens > 0:
            parts.append(part._replace(tokens=part.tokens[:num_tokens]))
            num_tokens -= len(part.tokens)
    return parts
