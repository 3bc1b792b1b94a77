"""Where one text is at a time: a sequence of the target's, the loop over it and a draft, and whose turn it is."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import NoReturn, Protocol

import numpy as np

from specllama import _core
from specllama.backend.prepare import require_own_gpu
from specllama.stats import Stats, Tally

from .account import Account
from .costs import CostMemory
from .drafts.draft import Draft
from .forks import raise_forked, require_threads, told_of_forks
from .kept_texts import KeptTexts, Tokens
from .listener import SILENT, Listener
from .model import Model, raise_closed
from .position import Position


def raise_busy() -> NoReturn:
    """Raises BusyError."""
    raise _core.BusyError(
        "this Llama is generating already, in another thread or around this call (of a logits processor, say): wait "
        "for it, or create one Llama for each"
    )


class UnderWay(Protocol):
    """A text, as its slot sees it."""

    @property
    def has_begun(self) -> bool:
        """Whether it has numbers to show."""

    @property
    def is_advancing(self) -> bool:
        """Whether a token is being made, and whoever uses the slot is called by this text."""

    def tally(self) -> Tally:
        """The numbers so far."""

    def end(self) -> Tally | None:
        """It is over. Gives its numbers; None if it never began."""

    def tell_end(self) -> None:
        """Tell who hears of it. It may use the slot."""


class Slot:
    """Has one text at a time.

    Args:
        account: of the engine whose slot it is.
        model: the target.
        position: where the text is.
        draft: what drafts.
        sequence: one of several of a context that `scheduler` decodes for. None: that of the model's own context.
        kept: earlier texts of the model's own context. None: nothing is kept of them.
    """

    def __init__(
        self,
        account: Account,
        model: Model,
        position: Position,
        draft: Draft | None = None,
        *,
        sequence: _core.Sequence | None = None,
        scheduler: _core.Scheduler | None = None,
        kept: KeptTexts | None = None,
    ) -> None:
        self.account = account
        self.model = model
        self.position = position
        self._draft = draft
        self._sequence = sequence
        self._scheduler = scheduler
        self._kept = kept
        self._loop: _core.Speculator | None = None
        self._costs: CostMemory | None = None
        self._turn = _core.Block(raise_busy)
        # Not the text itself: one that nobody reads any more ends.
        self._under_way: weakref.ref[UnderWay] | None = None
        self._number = 0  # of the text that has the sequences
        self._last = Tally()
        told_of_forks(self)

    def leave_parent(self) -> None:
        """In a forked child: what another thread was decoding stays as it is, in the middle."""
        if self._turn.has_others:
            self._turn.refuse_by(raise_forked)

    # What decodes

    @property
    def is_alone(self) -> bool:
        """Whether it has the model's own context, and no other text is in there."""
        return self._sequence is None

    @property
    def sequence(self) -> _core.Sequence:
        """The target's."""
        return self.model.sequence if self._sequence is None else self._sequence

    @property
    def loop(self) -> _core.Speculator:
        """The native loop over target and draft. Another draft means another one."""
        if self._loop is None:
            if self._draft is None:
                self._loop = _core.Speculator(self.sequence, scheduler=self._scheduler)
            else:
                self._loop = self._draft.loop(self.sequence, scheduler=self._scheduler)
                if self.is_alone:  # else whoever has all slots remembers
                    self._costs = CostMemory(self._loop, self.model, self._draft.models)
        return self._loop

    def restore_costs(self) -> None:
        """Have the loop believe what is kept of T(n), in place of what it has learned."""
        if self._costs is not None:
            self._costs.restore()

    def require_alone(self, what: str) -> None:
        """Refuse what takes more than a sequence of the target's.

        Raises:
            ValueError: others share the context.
        """
        if not self.is_alone:
            raise ValueError(
                f"{what} needs the Llama for one text alone: call create_completion or create_completions of the Llama "
                "itself, not of a slot"
            )

    def require_threads(self) -> None:
        """Called before anything is decoded.

        Raises:
            RuntimeError: it would wait for threads that a fork does not have, or use the GPU of its parent.
        """
        require_own_gpu()
        if self.is_alone:  # else a thread of the scheduler's decodes
            require_threads(self.model)

    # The draft

    @property
    def draft(self) -> Draft | None:
        """What drafts, usable or not."""
        return self._draft

    def exchange_draft(self, draft: Draft | None) -> None:
        """Have another draft from here on. The one before is freed, if it was opened for this target.

        Raises:
            BusyError: it is drafting. Nothing has changed then, and the other one is freed.
        """
        with contextlib.ExitStack() as refused:
            if draft is not None:
                refused.callback(draft.close)
            with self.exclusive():
                self._require_outside()
                if self._draft is not None:
                    self._draft.close()
                self._draft = draft
                self._loop = self._costs = None
            refused.pop_all()
        self._warn_if_unusable(draft)

    def claim(self, draft: Draft | None) -> bool:
        """Whether a round of this draft's can draft. Said once if it cannot."""
        if draft is None:
            return False
        draft.claim()
        self._warn_if_unusable(draft)
        return draft.unusable is None

    def _warn_if_unusable(self, draft: Draft | None) -> None:
        if draft is not None and draft.unusable is not None:
            self.account.warn_once(f"{draft.unusable}: decoding plainly, without the draft")

    # Whose turn it is

    def exclusive(self) -> _core.Block:
        """A block that refuses a second thread, which would corrupt the memory.

        Raises:
            BusyError: another thread is generating.
            ClosedError: another thread is closing the model.
            RuntimeError: this is a fork, and a thread of its parent was generating.
        """
        return self._turn

    @contextlib.contextmanager
    def closing(self) -> Iterator[None]:
        """The same, to free what texts use: not around one of them.

        Raises:
            BusyError: a thread is generating, perhaps this one.
        """
        with self._turn:
            if self._turn.depth > 1:
                raise_busy()
            yield

    def refuse_as_closed(self) -> None:
        """From here on another thread is told that what texts use is being freed."""
        self._turn.refuse_by(raise_closed)

    def begin(self, generation: UnderWay) -> int:
        """Give the sequences to a text, and end the one that has them. Returns the text's number.

        Raises:
            BusyError: that one has called what begins this one.
        """
        self.require_threads()
        self._require_outside()
        while (before := self._text_under_way()) is not None:  # who hears of its end may have begun another
            self.end(before, self._number)
        if self.is_alone:  # nobody else uses the memory of one of several, and the scheduler may have emptied it
            self.sequence.assume(self.position.tokens())
        self._under_way = weakref.ref(generation)
        self._number += 1
        return self._number

    def recall(self, text: Tokens) -> None:
        """Have in the memory what was kept of an earlier text that this one goes on with, where that is worth it."""
        if self._kept is None or not self._kept.keeps_some:
            return
        draft = self._draft
        if draft is not None:
            draft.claim()  # learns what its memory holds
        model = None if draft is None or draft.unusable is not None else draft.models.get("draft")
        try:
            self._kept.exchange(self.model, model, text)
        finally:
            held = self.sequence.tokens()
            if not np.array_equal(held, self.position.tokens()):
                self.position.ids[: len(held)] = held
                self.position.move(len(held), len(held))

    def end(self, generation: UnderWay, number: int) -> None:
        """Count a text that is over. One that never had the sequences leaves them to whoever has them."""
        tally = generation.end()
        if self.is_under_way(number):
            if tally is not None:
                self.account.add(tally)
                self._last = tally
            self._under_way = None
            if self._costs is not None:
                self._costs.keep()
        generation.tell_end()

    @property
    def is_idle(self) -> bool:
        """Whether no text has the sequences."""
        return self._text_under_way() is None

    def is_under_way(self, number: int) -> bool:
        """Whether the text with this number has the sequences."""
        return self._under_way is not None and self._number == number

    def stats(self) -> Stats:
        """Statistics of the last text, or of the one under way."""
        running = self._text_under_way()
        return (running.tally() if running is not None and running.has_begun else self._last).stats()

    def _text_under_way(self) -> UnderWay | None:
        return None if self._under_way is None else self._under_way()

    def _require_outside(self) -> None:
        """Refuse what would end a text to those whom it calls while it makes a token."""
        running = self._text_under_way()
        if running is not None and running.is_advancing:
            raise_busy()

    # The memory, where no text uses it

    def require_at_rest(self) -> None:
        """Called before the memory is changed, or read as a whole.

        Raises:
            BusyError: it is in the middle of a round, which has called a logits processor, say.
        """
        if self.model.is_in_use:
            raise_busy()

    def save(self) -> None:
        """Copy the state behind what is evaluated, of a memory that cannot be cut."""
        self.sequence.assume(self.position.tokens())
        self.sequence.save()

    def settle(self, listener: Listener = SILENT) -> None:
        """Have the memory hold what is evaluated, no more and no less.

        Args:
            listener: hears of it.
        """
        position, sequence = self.position, self.sequence
        self.require_threads()
        self.require_at_rest()
        if position.held == position.evaluated and self._under_way is None:
            return
        evaluated, n_batch = position.evaluated, self.model.settings.n_batch
        sequence.assume(position.tokens())
        try:
            sequence.keep(evaluated)
            while len(left := position.ids[sequence.num_tokens : evaluated][:n_batch]):
                listener.heed()  # here Python looks at signals, too
                sequence.decode(left, len(left))
        finally:
            position.move(evaluated, sequence.num_tokens)
            position.num_changes += 1
