"""What a slot does with the store: before a text takes its memories, when the text has begun, and when it has ended."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from specllama import _core
from specllama.engine.account import Account
from specllama.engine.drafts.draft import Draft
from specllama.engine.model import Model
from specllama.engine.position import num_common

from .entry import BLOCK, Tokens
from .memory import LEAST_GAIN, Memory, TierName
from .roots import about, root_of
from .store import Store


class Prefixes:
    """The memories of one slot, and the store.

    Args:
        store: the store.
        account: shows the store's warnings.
        model: the target.
        sequence: the target's sequence.
        is_shared: whether other texts share the memories, so that these may lose a text that has ended.
    """

    def __init__(
        self, store: Store, account: Account, model: Model, sequence: _core.Sequence, *, is_shared: bool
    ) -> None:
        self._store = store
        self._account = account
        self._model = model
        self._sequence = sequence
        self._is_shared = is_shared

    def before(self, draft: Draft | None, text: Tokens) -> None:
        """Keep what the memories lose when they get a text."""
        held = self._sequence.tokens()
        if len(held) - num_common(held, text) >= LEAST_GAIN:
            for memory in self._memories(draft):
                with self._skipped():
                    self._store.keep(memory)

    def hold(self, text: Tokens) -> None:
        """Put into the target's memory what the store has of a text that other code is about to decode."""
        target = self._memory(self._model, self._sequence)
        self._store.num_recalled += target.recall(text) is not None

    def begun(self, draft: Draft | None, loop: _core.Speculator, text: Tokens) -> None:
        """Put into the memories what the store has of a text that the loop has begun."""
        target, *others = self._memories(draft)
        if self._is_shared:
            target.sequence.borrow(text)
        gained = None
        with self._skipped():
            gained = target.recall(text[:-1])
        wanted = {id(sequence): tokens for sequence, tokens in loop.memories()}
        heads, is_changed = [], gained is not None
        for memory in others:
            tokens, is_head = wanted.get(id(memory.sequence)), memory.sequence.decoder.is_head
            if tokens is not None and (gained is not None or not is_head):
                with self._skipped():
                    is_changed = memory.recall(tokens) is not None or is_changed
                    heads += [memory.sequence] * is_head
        if is_changed:
            counts = gained or Counter[TierName]()
            for head in heads:
                _wait_for_head(target.sequence, head, counts)
            self._store.num_recalled += gained is not None
            loop.refilled(counts["ram"], counts["disk"])
        self._show_notes()

    def going_on(self) -> None:
        """Keep the target's state, if its memory cannot be cut: a later text may go on from the midst of this one."""
        memory = self._memory(self._model, self._sequence)
        if memory.sequence.decoder.needs_points:
            with self._skipped():
                self._store.keep(memory, only_points=True)

    def ended(self, draft: Draft | None, seconds: float) -> None:
        """Keep what must not wait for `before`, when a text has ended that took so many seconds."""
        is_all = self._store.disk is not None or self._is_shared
        for memory in self._memories(draft):
            decoder = memory.sequence.decoder
            # A memory that can be cut, but copied only as a whole, would be copied anew after each text.
            is_copied = decoder.copies_ranges or not decoder.rollback.startswith("seq_rm")
            if is_copied and (is_all or decoder.needs_points):
                with self._skipped():
                    self._store.keep(memory, only_points=not is_all, seconds=seconds)
        self._show_notes()

    def _memories(self, draft: Draft | None) -> list[Memory]:
        """The target's memory, then those of the draft."""
        target = self._memory(self._model, self._sequence)
        if draft is None or draft.unusable is not None:
            return [target]
        of_draft = [self._memory(*pair, target.root) for pair in draft.memories().values()]
        return [target, *of_draft]

    def _memory(self, model: Model, sequence: _core.Sequence, target: bytes = b"") -> Memory:
        n_ctx = sequence.decoder.num_cells
        root = root_of(model, n_ctx, target if sequence.decoder.is_head else b"")
        self._store.know(root, about(model))
        return Memory(sequence, root, self._store.tiers)

    @contextlib.contextmanager
    def _skipped(self) -> Iterator[None]:
        """A block that may fail: then a prompt is read."""
        with contextlib.suppress(_core.BusyError, _core.ClosedError, MemoryError):
            yield

    def _show_notes(self) -> None:
        for note in self._store.notes():
            self._account.warn_once(note)


def _wait_for_head(target: _core.Sequence, head: _core.Sequence, counts: Counter[TierName]) -> None:
    """Have the target read the last tokens again, if the head lacks them: it needs the target's states of these."""
    over = target.num_tokens - head.num_tokens
    if 0 < over <= BLOCK and head.num_tokens and not target.decoder.needs_points:
        target.keep(head.num_tokens)
        for tier in ("disk", "ram"):
            less = min(over, counts[tier])
            counts[tier] -= less
            over -= less
