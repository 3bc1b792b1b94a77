"""A slot: the place for one text at a time. It has a sequence of the target, a draft, and the native loop over both."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import NoReturn, Protocol

from specllama import _core
from specllama.backend.prepare import require_own_gpu
from specllama.models.loading import captured_errors
from specllama.stats import Stats, Tally

from .account import Account
from .costs import CostMemory
from .drafts.draft import Draft
from .forks import raise_forked, require_threads, told_of_forks
from .listener import SILENT, Listener
from .model import Model, raise_closed
from .position import Position, num_common
from .prefixes.entry import Tokens
from .prefixes.slot import Prefixes
from .prefixes.store import Store

_BETWEEN = 4096  # tokens of a prompt between two copies of a state that cannot be cut


def raise_busy() -> NoReturn:
    """Raise BusyError."""
    raise _core.BusyError(
        "this Llama is generating already, in another thread or around this call (of a logits processor, say): wait "
        "for it, or create one Llama for each"
    )


class UnderWay(Protocol):
    """A text, as its slot sees it."""

    @property
    def has_begun(self) -> bool:
        """Whether the text has begun, so that it has statistics."""

    @property
    def is_advancing(self) -> bool:
        """Whether a token is being made. Then only functions that this text calls can use the slot."""

    def tally(self) -> Tally:
        """The statistics so far."""

    def end(self) -> Tally | None:
        """End the text. Returns its statistics; None if the text never began."""

    def leave(self) -> None:
        """Roll the caches back to the last token that the reader got, and end the text in its slot."""

    def tell_end(self) -> None:
        """Notify the listener of the end. The listener may use the slot."""


class Slot:
    """The place for one text at a time.

    Args:
        account: the account of the engine.
        model: the target.
        position: the position of the slot's text.
        draft: the draft; None for plain decoding.
        sequence: one of several sequences of a context. None: the sequence of the model's own context.
        scheduler: decodes for all sequences of the context of `sequence`; None for the model's own context.
        store: copies of what memories held of earlier texts. None: there are no copies.
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
        store: Store | None = None,
    ) -> None:
        self.account = account
        self.model = model
        self.position = position
        self._draft = draft
        self._sequence = sequence
        self._scheduler = scheduler
        self._store = store
        self._copied_at = 0  # how many tokens the target's memory held when its state was copied last
        self._loop: _core.Speculator | None = None
        self._costs: CostMemory | None = None
        self._turn = _core.Block(raise_busy)
        # The reference is weak, so that a text ends when its reader drops it.
        self._under_way: weakref.ref[UnderWay] | None = None
        self._number = 0  # the number of the newest text, which has the sequences if it is under way
        self._last = Tally()  # of the last text that has ended
        told_of_forks(self)

    def leave_parent(self) -> None:
        """Called in a forked child. If another thread was decoding, its round never ends: the slot refuses all use."""
        if self._turn.has_others:
            self._turn.refuse_by(raise_forked)

    # What decodes

    @property
    def is_alone(self) -> bool:
        """Whether the slot has the model's own context, in which there is no other text."""
        return self._sequence is None

    @property
    def sequence(self) -> _core.Sequence:
        """The target's sequence."""
        return self.model.sequence if self._sequence is None else self._sequence

    @property
    def loop(self) -> _core.Speculator:
        """The native loop over target and draft. It is made at the first use, and anew after `exchange_draft`."""
        if self._loop is None:
            if self._draft is None:
                self._loop = _core.Speculator(self.sequence, scheduler=self._scheduler)
            else:
                self._loop = self._draft.loop(self.sequence, scheduler=self._scheduler)
                if self.is_alone:  # else `Texts` keeps the costs of all slots
                    self._costs = CostMemory(self._loop, self.model, self._draft.timed)
        return self._loop

    def restore_costs(self) -> None:
        """Read the curves T(n) from the files again. The loop uses them, and forgets the costs that it has learned."""
        if self._costs is not None:
            self._costs.restore()

    def require_alone(self, what: str) -> None:
        """Check that this slot has the model's own context. `what` names the caller, which needs it.

        Raises:
            ValueError: other texts share the context.
        """
        if not self.is_alone:
            raise ValueError(
                f"{what} needs the Llama for one text alone: call create_completion or create_completions of the Llama "
                "itself, not of a slot"
            )

    def require_threads(self) -> None:
        """Check that decoding can work in this process. Called before anything is decoded.

        Raises:
            RuntimeError: decoding would wait for threads that a fork does not have, or use the GPU of the parent.
        """
        require_own_gpu()
        if self.is_alone:  # else a thread of the scheduler decodes
            require_threads(self.model)

    # The draft

    @property
    def draft(self) -> Draft | None:
        """The draft, usable or not; None if there is none."""
        return self._draft

    def exchange_draft(self, draft: Draft | None) -> None:
        """Use another draft from now on. The old draft is freed, if it was opened for this target.

        Raises:
            BusyError: the old draft is drafting. Then it stays, and the new draft is freed.
        """
        with captured_errors():
            try:
                with self.exclusive():
                    self._require_outside()
                    old = self._draft
                    self._loop = self._costs = None  # loop and costs use the old draft, so they go first
                    self._draft = draft
                    try:
                        if old is not None:
                            old.close()
                    except _core.BusyError:
                        self._draft = old
                        raise
            finally:
                if draft is not None and draft is not self._draft:
                    draft.close()
        self._warn_if_unusable(draft)

    def claim(self, draft: Draft | None) -> bool:
        """Have a draft take over its cache before a round. Returns whether it can draft; if it cannot, warns once."""
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
        """A block that only one thread can enter at a time, because two threads would corrupt the memory.

        Raises:
            BusyError: another thread is generating.
            ClosedError: another thread is closing the model.
            RuntimeError: this is a fork, and a thread of its parent was generating.
        """
        return self._turn

    def require_outermost(self) -> None:
        """Check that the caller's `exclusive` block is the outermost. Then no round runs, and models can be freed.

        Raises:
            BusyError: the calling thread is generating.
        """
        if self._turn.depth > 1:
            raise_busy()

    def refuse_as_closed(self) -> None:
        """Have the slot raise ClosedError in other threads from now on."""
        self._turn.refuse_by(raise_closed)

    def begin(self, generation: UnderWay) -> int:
        """Give the slot's sequences to a text, and end the text that has them. Returns the new text's number.

        Raises:
            BusyError: the old text is making a token, and a function that it calls has called this.
        """
        self._end_text()
        self._under_way = weakref.ref(generation)
        self._number += 1
        return self._number

    def _end_text(self) -> None:
        self.require_threads()
        self._require_outside()
        while (before := self._text_under_way()) is not None:  # a loop: a listener of the end may begin another text
            before.leave()  # its statistics include its open round
        if self.is_alone:  # in other slots only texts use the memory, and the scheduler may have emptied it
            self.sequence.assume(self.position.tokens())

    # Copies of earlier texts

    def keep_lost(self, text: Tokens) -> None:
        """Copy what the memories lose when they get a text."""
        if (prefixes := self._prefixes()) is not None:
            if self._draft is not None:
                self._draft.claim()  # the draft learns what its memory holds
            prefixes.before(self._draft, text)

    def recall(self, text: Tokens) -> None:
        """Put copies for a text that the loop has begun into the memories, if that pays."""
        if (prefixes := self._prefixes()) is not None:
            try:
                prefixes.begun(self._draft, self.loop, text)
            finally:
                held = self.sequence.tokens()
                self.position.ids[: len(held)] = held
                self.position.held = self._copied_at = len(held)

    def hold(self, text: Tokens, images: Sequence[tuple[int, int]]) -> int:
        """Have the target's memory hold what it, or a copy, has of a text, and nothing else. A text under way ends.

        Args:
            text: the tokens, and the numbers of images' places. Other code decodes what the memory lacks.
            images: where each image begins and ends in the text. The memory holds all of an image, or nothing of it.

        Returns:
            How many tokens the memory holds. It is 0 if the memory cannot be cut.

        Raises:
            BusyError: a text is making a token.
        """
        self._end_text()
        self.keep_lost(text)
        sequence, count = self.sequence, 0
        if sequence.decoder.rollback == "seq_rm":
            sequence.keep(num_common(sequence.tokens(), text))
            if (prefixes := self._prefixes()) is not None:
                prefixes.hold(text)
            count = sequence.num_tokens
            count = min([count, *(start for start, end in images if start < count < end)])
        sequence.keep(count)
        count = sequence.num_tokens
        self.position.ids[:count] = text[:count]
        self.position.change(count)
        return count

    def keep_progress(self) -> None:
        """Copy the state of a memory that cannot be cut, now and then while a long prompt is decoded."""
        held = self.sequence.num_tokens
        if held - self._copied_at >= _BETWEEN and (prefixes := self._prefixes()) is not None:
            self._copied_at = held
            prefixes.going_on()

    def keep_text(self, seconds: float) -> None:
        """Copy what the memories hold of a text that has ended after so many seconds, if it would be lost."""
        if (prefixes := self._prefixes()) is not None:
            prefixes.ended(self._draft, seconds)

    def _prefixes(self) -> Prefixes | None:
        if self._store is None or not self._store.keeps_some:
            return None
        return Prefixes(self._store, self.account, self.model, self.sequence, is_shared=not self.is_alone)

    def end(self, generation: UnderWay, number: int) -> None:
        """Add up a text that is over, and take the slot's sequences from the text, if it has them."""
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
        """Whether no text has the slot's sequences."""
        return self._text_under_way() is None

    def is_under_way(self, number: int) -> bool:
        """Whether the text with this number has the slot's sequences."""
        return self._under_way is not None and self._number == number

    def stats(self) -> Stats:
        """Statistics of the text that is under way, or else of the last text."""
        running = self._text_under_way()
        return (running.tally() if running is not None and running.has_begun else self._last).stats()

    def _text_under_way(self) -> UnderWay | None:
        return None if self._under_way is None else self._under_way()

    def _require_outside(self) -> None:
        """Raise BusyError if a text is making a token: functions that the text calls must not end it."""
        running = self._text_under_way()
        if running is not None and running.is_advancing:
            raise_busy()

    # The memory, where no text uses it

    def require_at_rest(self) -> None:
        """Check that no round uses the memory. Called before the memory is changed, or read as a whole.

        Raises:
            BusyError: a round is under way, and has for example called a logits processor.
        """
        if self.model.is_in_use:
            raise_busy()

    def save(self) -> None:
        """Copy the state after the evaluated tokens, for later rollbacks, if the memory is recurrent."""
        self.sequence.assume(self.position.tokens())
        self.sequence.save()

    def settle(self, listener: Listener = SILENT) -> None:
        """Have the memory hold exactly the evaluated tokens.

        Args:
            listener: is called between batches, and may end the work.
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
                listener.poll()  # Python handles signals here, too
                sequence.decode(left, len(left))
        finally:
            position.move(evaluated, sequence.num_tokens)
            position.num_changes += 1
