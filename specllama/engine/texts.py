"""The slots of an engine for several texts at once, and how texts wait for a slot and take it."""

from __future__ import annotations

import contextlib
import ctypes
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import llama_cpp

from specllama import _core
from specllama.backend.brief import brief
from specllama.backend.prepare import require_own_gpu

from .contexts import Contexts
from .costs import CostMemory
from .drafts.draft import Draft, DraftOfMany
from .forks import raise_forked, told_of_forks
from .model import raise_closed
from .options import checked_index, checked_optional
from .position import Position
from .prefixes.store import Store
from .slot import Slot, raise_busy

_WAITING = 0.05  # seconds between two calls of `poll` while a text waits for a slot


def checked_max_parallel(value: Any) -> int:
    """Check ``max_parallel``: how many texts may run at once, at least 1.

    Raises:
        TypeError: no int.
        ValueError: out of range.
    """
    most = int(llama_cpp.llama_max_parallel_sequences())
    number = checked_index("max_parallel", value, f"an int, from 1 to {most}")
    if not 1 <= number <= most:
        raise ValueError(f"max_parallel={brief(number)} is out of range: llama.cpp decodes 1 to {most} texts at once")
    return number


def checked_cache_tokens(value: Any) -> int | None:
    """Check ``cache_tokens``: how many tokens the cache of several texts holds; None: ``n_ctx`` for each.

    Raises:
        TypeError: neither None nor an int.
        ValueError: not positive.
    """
    return checked_optional("cache_tokens", value, 1, "an int of at least n_ctx, or None")


class _Taker(NamedTuple):
    """A text that has a slot: its thread, and a function that stops the text; None if it cannot be stopped."""

    thread: int
    stop: Callable[[], None] | None


class Texts:
    """The slots of an engine, besides the slot of the model's own context.

    These slots are opened when the first is needed, and opened anew when more are needed, or the draft has changed.

    A model whose recurrent states llama.cpp cannot copy has only the slot of its own context.

    Args:
        slot: the slot of the model's own context.
        cache_tokens: how many tokens the cache of all these texts holds; None: ``n_ctx`` for each text.
        store: copies of what memories held of earlier texts; None: there are no copies.
    """

    def __init__(self, slot: Slot, cache_tokens: int | None = None, store: Store | None = None) -> None:
        self.slot = slot
        self._store = store
        self._cache_tokens = cache_tokens
        # No Condition: its methods are Python code, and Ctrl-C in one of them would leave the lock locked for good.
        self._lock = threading.Lock()
        self._waiting: list[queue.SimpleQueue[None]] = []  # one for each text that waits for a slot
        self._closing = threading.Lock()  # a text never takes this lock
        self._contexts: Contexts | None = None
        self._costs: CostMemory | None = None
        self._free: deque[Slot] = deque()  # the least recently used slot comes first
        self._texts: dict[Slot, str] = {}  # by slot, the prompt of its last text
        self._count = 0  # the number of open slots
        self._takers: list[_Taker] = []  # the texts in these slots
        self._alone: _Taker | None = None  # the text in `slot`
        self._draft: tuple[object, bool] = (None, False)  # the draft when slots were opened, and whether it was usable
        self._is_closed = False
        self._is_lost = False  # whether texts were under way in the parent of this process
        told_of_forks(self)

    def open(self, count: int) -> int:
        """Open slots for ``count`` texts at once. Returns the possible number: 1 if states cannot be copied.

        If ``count`` is 1, the text takes `slot`, unless other texts are under way.

        Raises:
            ClosedError: the Llama is closed.
            BusyError: texts are under way, and there are fewer than ``count`` slots or the draft has changed; or one of
                these texts has called this.
            MemoryError: there is no room for so many texts.
            RuntimeError: this is a fork, and texts were under way in its parent, or it would use a GPU.
        """
        self.require_outside()
        self.slot.model.require_open()
        require_own_gpu()
        if not self._can_share():
            return 1
        with self._lock:
            if self._is_closed:
                raise_closed()
            if self._is_lost:
                raise_forked()
            if count == 1:
                if not self._takers:
                    self._close()
                return 1
            draft = self.slot.draft
            is_fitting = self._count >= count and self._draft == (draft, _is_usable(draft))
            if self._contexts is not None and is_fitting:
                return count
            if self._takers and self._count >= count:
                raise _core.BusyError(
                    f"{len(self._takers)} texts are under way with the draft as it was before: wait for them, because "
                    "texts at once have one draft"
                )
            if self._takers:
                raise _core.BusyError(
                    f"{len(self._takers)} texts are under way at {self._count} slots: wait for them before asking for "
                    f"{count}, or create the Llama with max_parallel={count}"
                )
            self._close()
            self._open(draft, count)
        return count

    @contextlib.contextmanager
    def taken(
        self,
        count: int,
        poll: Callable[[], None],
        *,
        text: str = "",
        stop: Callable[[], None] | None = None,
        is_alone: bool = False,
    ) -> Iterator[Slot]:
        """Wait for a free slot, and take it for the block.

        Args:
            count: how many texts run at once, as `open` has returned. If it is 1, and no other slots are open, the text
                takes `slot`.
            poll: called again and again while the text waits. An error that it raises ends the waiting.
            text: the prompt. If it continues the text of a free slot, as in a conversation, it gets that slot. Else it
                gets the least recently used slot, so that newer texts can still be continued.
            stop: called when the Llama is closed, and ends the text soon. None: the Llama cannot be closed while the
                text is in `slot`.
            is_alone: whether the text needs the model's own context, and so `slot`, which has one text at a time.

        Raises:
            ClosedError: the Llama is closed, or being closed.
        """
        taker, waiter = _Taker(threading.get_ident(), stop), queue.SimpleQueue[None]()
        while (slot := self._slot_for(taker, waiter, count, text, is_alone)) is None:
            with contextlib.suppress(queue.Empty):
                waiter.get(timeout=_WAITING)
            poll()
        try:
            yield slot
        finally:
            with self._lock:
                if slot is self.slot:
                    self._alone = None
                else:
                    self._takers.remove(taker)
                    self._free.append(slot)
                self._wake()
            costs = self._costs
            if costs is not None:
                costs.keep()

    def _slot_for(
        self, taker: _Taker, waiter: queue.SimpleQueue[None], count: int, text: str, is_alone: bool
    ) -> Slot | None:
        """Take a slot for a text. None if the text must wait: then its waiter is woken when a slot may be free.

        Raises:
            ClosedError: the Llama is closed, or being closed.
        """
        with self._lock:
            if self._is_closed:
                raise_closed()
            if is_alone or (not self._count and count == 1):
                if self._alone is None:
                    self._alone = taker
                    return self.slot
            else:
                if not self._count:  # a text that takes `slot` may have closed these slots since `open`
                    self._close()
                    self._open(self.slot.draft, count)
                if self._free:
                    slot = max(self._free, key=lambda free: _num_continued(self._texts.get(free, ""), text))
                    self._free.remove(slot)
                    self._texts[slot] = text
                    self._takers.append(taker)
                    return slot
            if waiter not in self._waiting:
                self._waiting.append(waiter)
            return None

    def _wake(self) -> None:
        """Wake all waiting texts, which then look for a free slot again. The caller must hold the lock."""
        for waiter in self._waiting:
            waiter.put(None)
        self._waiting.clear()

    def end_alone(self) -> None:
        """Stop the text that has `slot`, if there is one, and wait for its end. No slots can be taken any more then.

        Raises:
            BusyError: the text cannot be stopped.
        """
        waiter = queue.SimpleQueue[None]()
        while (taker := self._alone) is not None:
            if taker.stop is None:
                raise_busy()
            with self._lock:
                self._is_closed = True
                if waiter not in self._waiting:
                    self._waiting.append(waiter)
            taker.stop()
            with contextlib.suppress(queue.Empty):
                waiter.get(timeout=_WAITING)

    @property
    def counters(self) -> _core.SchedulerCounters | None:
        """The counters of the scheduler since the slots were opened; None if no slots are open."""
        return None if self._contexts is None else self._contexts.scheduler.counters

    def require_outside(self) -> None:
        """Check that the calling thread does not generate one of these texts, because it would wait for itself.

        Raises:
            BusyError: the calling thread generates one of these texts.
        """
        with self._lock:
            takers = self._takers if self._alone is None else [*self._takers, self._alone]
            if any(taker.thread == threading.get_ident() for taker in takers):
                raise_busy()

    def close(self) -> None:
        """Free the contexts. Texts under way get ClosedError, and the call waits until they have left their slots.

        Raises:
            BusyError: the calling thread has a slot.
        """
        self.require_outside()
        with self._closing:
            with self._lock:
                self._is_closed = True
                self._wake()
                contexts = self._contexts
            if contexts is not None:
                contexts.end()  # without the lock: `end` waits for texts, which may need the lock
            waiter = queue.SimpleQueue[None]()
            while not self._closed(waiter):
                waiter.get()

    def _closed(self, waiter: queue.SimpleQueue[None]) -> bool:
        """Free the contexts, and return True. If a text has a slot, return False: leaving a slot wakes the waiter."""
        with self._lock:
            if self._takers:  # a text with a slot may still read logits and other parts of the model
                self._waiting.append(waiter)
                return False
            self._close()
            return True

    def leave_parent(self) -> None:
        """Called in a forked child, which lacks the scheduler's thread that decodes for all slots.

        New slots are opened when needed. The old slots are never freed, because freeing would wait for that thread.
        """
        self._lock, self._closing, self._alone = threading.Lock(), threading.Lock(), None
        self._waiting = []
        if self._contexts is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object((self._contexts, self._costs, *self._free)))
            self._contexts = None
        self._is_lost = self._is_lost or bool(self._takers)
        self._takers = [taker for taker in self._takers if taker.thread == threading.get_ident()]
        self._close()

    def _can_share(self) -> bool:
        models = [self.slot.model, *({} if self.slot.draft is None else self.slot.draft.models).values()]
        return all(model.is_shareable for model in models)

    def _open(self, draft: Draft | None, count: int) -> None:
        model, account = self.slot.model, self.slot.account
        if draft is not None:
            draft.require_several()
        self._contexts = contexts = Contexts(model, draft, count, self._cache_tokens)
        for number in range(count):
            target, sequences = contexts.sequences(number)
            drafting = None if draft is None else DraftOfMany(draft, sequences)
            position = Position(model.n_ctx)
            more: dict[str, Any] = {"scheduler": contexts.scheduler, "store": self._store}
            slot = Slot(account, model, position, drafting, sequence=target, **more)
            self._free.append(slot)
        self._draft = draft, _is_usable(draft)
        if draft is not None:
            self._costs = CostMemory(contexts.scheduler, model, draft.timed)
        self._count = count  # last: if Ctrl-C comes before, the next text opens the slots anew

    def _close(self) -> None:
        if self._contexts is not None:
            self._contexts.close()
        self._contexts = self._costs = None
        self._free.clear()
        self._texts.clear()
        self._count = 0


def _is_usable(draft: Draft | None) -> bool:
    if draft is None:
        return False
    draft.notice_closing()
    return draft.unusable is None


def _num_continued(before: str, text: str) -> int:
    """How many characters of ``before`` also begin ``text``; 0 if they are less than half of ``before``."""
    least, most = 0, min(len(before), len(text))
    while least < most:
        middle = (least + most + 1) // 2
        if before.startswith(text[:middle]):
            least = middle
        else:
            most = middle - 1
    return least if 2 * least >= len(before) else 0
