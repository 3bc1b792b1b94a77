"""What the generations of one Llama share: its contexts, the native loop over them, and whose turn it is."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import NoReturn, Protocol

from specllama import _core
from specllama.backend.base_class import BaseLlama
from specllama.costs.learned import CostMemory
from specllama.drafts.draft import Draft
from specllama.stats import Stats, Tally
from specllama.warn import warn

from .closed import raise_closed
from .forks import raise_forked, require_threads, told_of_forks
from .memory import memory_of
from .options import FallbackWarning, Options
from .total import Total
from .watch import heed_watch


def raise_busy() -> NoReturn:
    """Raises BusyError."""
    raise _core.BusyError(
        "this Llama is generating already, in another thread or around this call (of a logits processor, say): wait "
        "for it, or create one Llama for each"
    )


class UnderWay(Protocol):
    """A generation, as the session sees it."""

    @property
    def begun(self) -> bool:
        """Whether it has numbers to show."""

    def tally(self) -> Tally:
        """The numbers so far."""

    def disturb(self) -> None:
        """Somebody has put something else into the memory: it cannot go on."""

    def end(self) -> Tally | None:
        """It is over. Gives its numbers; None if it never began."""


class Session:
    """Owned by a Llama, and lent to whatever works on its contexts.

    It does not keep the Llama alive: whoever needs that holds the Llama, too.

    Args:
        llama: the target.
        options: how to speculate where a call does not say.
        place_of: the session whose Llama this is a place of: one of several that share contexts. Both count together,
            and say a thing once.
        scheduler: what decodes for these.

    Attributes:
        options: how to speculate where a call does not say.
        memory: what is known of the target's memory.
    """

    def __init__(
        self,
        llama: BaseLlama,
        options: Options,
        place_of: Session | None = None,
        scheduler: _core.Scheduler | None = None,
    ) -> None:
        self._llama = weakref.ref(llama)
        self.options = options
        self._is_place = place_of is not None
        self._scheduler = scheduler
        self.memory = memory_of(llama)
        self._draft: Draft | None = None
        self._engine: _core.Speculator | None = None
        self._costs: CostMemory | None = None
        self._lock = threading.RLock()
        self._depth = 0  # of blocks in which its thread is
        self._is_lost = False  # whether that thread stayed behind in the parent of this process
        self.is_closing = False
        """Whether what generations use is being freed."""
        self._under_way: UnderWay | None = None
        self._warned: dict[str, object] = {} if place_of is None else place_of._warned
        self._total: Total = Total() if place_of is None else place_of._total
        self._last = Tally()
        told_of_forks(self)

    def leave_parent(self) -> None:
        """In a forked child: what another thread was decoding stays as it is, in the middle."""
        self._is_lost = not self._lock.acquire(blocking=False)
        if not self._is_lost:
            self._lock.release()

    # The contexts, and the loop over them

    @property
    def llama(self) -> BaseLlama:
        """The target."""
        llama = self._llama()
        assert llama is not None, "whoever works with a session holds its Llama"
        return llama

    @property
    def target(self) -> _core.Sequence:
        """The target's sequence."""
        return self.memory.sequence(self.llama, "target")

    @property
    def engine(self) -> _core.Speculator:
        """The native loop over target and draft. Another draft means another one."""
        if self._engine is None:
            if self._draft is None:
                self._engine = _core.Speculator(self.target, scheduler=self._scheduler)
            else:
                self._engine = self._draft.engine(self.target, scheduler=self._scheduler)
                if not self._is_place:  # else whoever has all places does
                    self._costs = CostMemory(self._engine, self.llama, self._draft.models)
        return self._engine

    def restore_costs(self) -> None:
        """Have the loop believe what is kept of T(n), in place of what it has learned."""
        if self._costs is not None:
            self._costs.restore()

    def require_alone(self, what: str) -> None:
        """Refuse what takes more than a sequence of the target's.

        Raises:
            ValueError: others share the contexts.
        """
        if self._is_place:
            raise ValueError(
                f"{what} needs the Llama for one text alone: call create_completion or create_completions of the Llama "
                "itself, not of a place"
            )

    # The draft

    @property
    def draft(self) -> Draft | None:
        """What drafts, usable or not."""
        return self._draft

    @property
    def models(self) -> dict[str, BaseLlama]:
        """What decodes: the target, and what its draft decodes with, by their names in reports."""
        return {"target": self.llama, **({} if self._draft is None else self._draft.models)}

    def exchange_draft(self, draft: Draft | None) -> None:
        """Have another draft from here on. The one before is freed, if it was loaded for this target.

        Raises:
            BusyError: it is drafting. Nothing has changed then.
        """
        with self.exclusive():
            if self._draft is not None:
                self._draft.close()
            self._draft = draft
            self._engine = self._costs = None
        self._warn_if_unusable()

    def claim_draft(self) -> bool:
        """Whether a round can draft. Said once if it cannot."""
        if self._draft is None:
            return False
        self._draft.claim()
        self._warn_if_unusable()
        return self._draft.unusable is None

    def _warn_if_unusable(self) -> None:
        if self._draft is not None and self._draft.unusable is not None:
            self.warn_once(f"{self._draft.unusable}: decoding plainly, without the draft")

    # Whose turn it is

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Refuses a second thread, which would corrupt the memory.

        Raises:
            BusyError: another thread is generating.
            ClosedError: another thread is closing the Llama.
            RuntimeError: this is a fork, and a thread of its parent was generating.
        """
        if not self._lock.acquire(blocking=False):
            if self._is_lost:
                raise_forked()
            if self.is_closing:
                raise_closed()
            raise_busy()
        self._depth += 1
        llama = self._llama()  # kept: the block may drop the last other reference, which would close it here
        try:
            yield
        finally:
            self._depth -= 1
            self._lock.release()
            del llama

    @contextlib.contextmanager
    def closing(self) -> Iterator[None]:
        """The same, to free what generations use: not around one of them.

        Raises:
            BusyError: a thread is generating, perhaps this one.
        """
        with self.exclusive():
            if self._depth > 1:
                raise_busy()
            yield

    def begin(self, generation: UnderWay) -> None:
        """Give the contexts to a generation, and end the one that has them."""
        self.require_threads()
        if self._under_way is not None:
            self.end(self._under_way)
        if not self._is_place:  # nobody else uses the memory of a place, and the scheduler may have emptied it
            self.target.assume(self.memory.tokens(self.llama))
        self._under_way = generation

    def end(self, generation: UnderWay) -> None:
        """Count a generation that is over. One that never had the contexts leaves them to whoever has them."""
        tally = generation.end()
        if generation is not self._under_way:
            return
        if tally is not None:
            self._total.add(tally)
            self._last = tally
        self._under_way = None
        if self._costs is not None:
            self._costs.keep()

    def require_threads(self) -> None:
        """Called before anything is decoded outside of a generation.

        Raises:
            RuntimeError: it would wait for threads that a fork does not have.
        """
        if not self._is_place:  # which decodes in a thread of its own
            require_threads(self.llama)

    @property
    def is_idle(self) -> bool:
        """Whether no generation has the contexts."""
        return self._under_way is None

    def is_under_way(self, generation: UnderWay) -> bool:
        """Whether a generation has the contexts."""
        return self._under_way is generation

    # The memory, where no generation uses it

    def note_change(self) -> None:
        """Say that somebody else than a generation has changed the memory, which holds what is evaluated."""
        n_tokens = self.llama.n_tokens
        self.memory.note(n_tokens, n_tokens)
        if self._under_way is not None:
            self._under_way.disturb()

    def settle(self) -> None:
        """Have the memory hold what is evaluated, no more and no less."""
        llama = self.llama
        held = self.memory.tokens(llama)
        self.require_threads()
        if len(held) == llama.n_tokens and self._under_way is None:
            return
        sequence = self.target
        sequence.assume(held)
        try:
            sequence.keep(llama.n_tokens)
            while len(left := llama.input_ids[sequence.num_tokens : llama.n_tokens][: llama.n_batch]):
                heed_watch()  # here Python looks at signals, too
                sequence.decode(left, len(left))
        finally:
            self.memory.note(llama.n_tokens, sequence.num_tokens)

    # What is said, and counted

    def warn_once(self, message: str) -> None:
        """Warn of a fallback, unless that has been said."""
        first = object()
        if self._warned.setdefault(message, first) is first:  # atomic: places of one Llama say it at once
            warn(message, FallbackWarning)

    def stats(self) -> Stats:
        """Statistics of the last generation, or of the one under way."""
        running = self._under_way
        return (running.tally() if running is not None and running.begun else self._last).stats()

    def total_stats(self) -> Stats:
        """Statistics of all generations that have ended, at places too, together."""
        return self._total.stats()
