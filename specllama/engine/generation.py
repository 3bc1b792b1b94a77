"""One generation: takes tokens from the native loop, one at a time, and handles all that can interrupt a text."""

from __future__ import annotations

import collections
import functools
import itertools
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from specllama import _core
from specllama.backend.prepare import prepare_backend
from specllama.stats import Tally
from specllama.token import Origin

from .closed_when_gone import ClosedWhenGone
from .drafts.draft import Draft
from .examples.store import LIKELY, KeptText
from .listener import SILENT
from .model import token_ids
from .position import Position
from .request import Chooser, Request, checked_callables
from .slot import Slot, raise_busy

_ORIGINS = {drafter.name: cast(Origin, drafter.origin) for drafter in _core.drafters()}


class Generation(ClosedWhenGone, Iterator[int]):
    """An iterator over the tokens of one text. The first ``next`` begins the text; an error, or ``close``, ends it.

    Between two calls of ``next``, the caches are at a committed position: they hold no tokens that may yet be rejected.

    Args:
        slot: the slot that generates the text.
        request: the prompt, and everything else that the text asks for.
        keeper: an object that this generation keeps alive, because deleting it would free the model.

    Attributes:
        origin: which drafter the last token came from, or how the target gave it (``Origin``).
        stopped_by_criteria: whether one of the stopping criteria has ended the text.
    """

    _is_closed = True  # while `__init__` runs, because `close` could not work yet
    _error: BaseException | None = None

    _ends = staticmethod(sys.is_finalizing)  # kept here, because at exit the names of modules may be gone

    def __init__(self, slot: Slot, request: Request, keeper: object = None) -> None:
        self._keeper = keeper
        self._slot = slot
        self._request = request
        self._rule = request.rule()
        # The tokens of the last round that the caller has not got yet.
        self._waiting: collections.deque[tuple[int, Origin]] = collections.deque()
        self._row = -1  # the row, in the last round, of the logits of the last token that the caller got
        self._prompt_size = self._end = _count(request.tokens)  # _end: how many tokens the caller has, with the prompt
        self._num_appended = 0  # tokens that the caller has appended after the prompt
        self._evaluated: int | None = None  # how many tokens are evaluated; None before the first token
        self._num_changes = 0  # `Position.num_changes` when this text began; a change ends this text
        self._number = 0  # the number that the slot gives this text when it begins
        self._draft: Draft | None = None  # the slot's draft when this text began
        self._started = self._last_active = self._sample_seconds = 0.0
        self._processors = checked_callables("logits_processor", request.logits_processor)
        self._criteria = checked_callables("stopping_criteria", request.stopping_criteria)
        self._rollback = "none"
        self._tally: Tally | None = None
        self._examples: KeptText | None = None  # what a head can learn from this text
        self._has_ended = False  # also True if another text has ended this one
        self._is_heard = False  # the listener was notified of the beginning, and not yet of the end
        self._error: Exception | None = None  # raised by the listener at the end; `close` raises it again
        self.has_begun = False
        """Whether the text has begun, so that it has statistics."""
        self.stopped_by_criteria = False
        self.origin: Origin = "plain"
        self._is_closed = False
        self.is_advancing = False
        """Whether a token is being made. Then only functions that this text calls can use the slot."""

    def __next__(self) -> int:
        """The next token.

        Raises:
            BusyError: another thread is generating.
            ClosedError: the model is closed.
            DecodeError: llama.cpp fails.
            RuntimeError: a later text, or a change of the memory, has ended this text.
        """
        if self.is_advancing:  # another thread, or a function that this text has called, asks for a token
            with self._slot.exclusive():
                raise_busy()
        try:
            token = None if self._is_closed or self._is_complete else self._advance()
        except BaseException as error:
            self.close()
            if isinstance(error, StopIteration):
                raise _no_end(error) from error
            raise
        if token is None:
            self.close()
            raise StopIteration
        return token

    def _advance(self) -> int | None:
        """The next token; None at the end."""
        with self._slot.exclusive():
            self.is_advancing = True
            try:
                if not self.has_begun:
                    self._begin()
                self._require_undisturbed()
                if not self._waiting:
                    self._waiting.extend(self._round())
                return self._hand_out()
            except BaseException:
                if self.has_begun:
                    self._note_after_an_error()
                raise
            finally:
                self.is_advancing = False

    def close(self) -> None:
        """End the text. The caches then hold the tokens that the caller has seen, and nothing else.

        This does nothing while the interpreter is ending.

        Raises:
            Exception: raised by the listener when it was notified of the end, in this call, or when a later text ended
                this text.
        """
        if self._ends():
            return
        if not self._is_closed:
            self._is_closed = True
            try:
                with self._slot.exclusive():
                    if not self._has_ended:
                        self.leave()
            except (_core.BusyError, _core.ClosedError):
                self._has_ended = True  # another thread takes the slot or closes the model, which also ends this text
        error, self._error = self._error, None
        if error is not None:
            raise error

    def append(self, tokens: Sequence[int]) -> None:
        """Append tokens of the caller's own to the text, after its last token.

        The appended tokens count as tokens of the prompt: neither as generated tokens, nor towards ``max_tokens``.

        Raises:
            TypeError, ValueError: `tokens` are no tokens, or do not fit into the context.
            BusyError: the call comes while the next token is made, for example by a logits processor.
            RuntimeError: there is no token yet; or a later text, or a change of the memory, has ended this text.
        """
        slot = self._slot
        with slot.exclusive():
            self._require_token("append")
            ids = token_ids(tokens, "what is sent", slot.model.n_vocab)
            end = self._end + len(ids)
            if end > slot.model.n_ctx:
                raise ValueError(
                    f"{len(ids)} tokens behind {self._end} do not fit into n_ctx={slot.model.n_ctx}: send fewer, or "
                    "create the Llama with a larger n_ctx (-c)"
                )
            self._waiting.clear()
            self._loop.rewind(self._end)
            self._loop.extend(ids)
            slot.position.ids[self._end : end] = ids
            self._note(self._evaluated)
            self._end = end
            self._num_appended += len(ids)

    def logits(self) -> npt.NDArray[np.single]:
        """The target's raw logits [n_vocab] from which the last token was sampled.

        Raises:
            RuntimeError: there is no token yet, the request has not asked for logits, or this text has ended.
            BusyError: the next token is being made.
        """
        if not self._request.keeps_logits:
            raise RuntimeError("the logits of this text are not kept: ask for it with wants_logits=True")
        with self._slot.exclusive():
            self._require_token("logits")
            return self._loop.logits(self._row)

    def acceptance_probability(self) -> float | None:
        """min(1, p/q) of the last token; None unless the token was drafted.

        Raises:
            RuntimeError: there is no token yet, or this text has ended.
            BusyError: the next token is being made.
        """
        with self._slot.exclusive():
            self._require_token("acceptance_probability")
            return self._loop.acceptance_probability(self._row)

    def _require_token(self, what: str) -> None:
        """Raise an error if this text has no last token, or the slot has another text. `what` names the caller."""
        if self.is_advancing:
            raise_busy()
        if self.has_begun and not self._is_closed:
            self._require_undisturbed()
        if self._row < 0 or self._is_closed:
            raise RuntimeError(
                f"{what}() is about the token that came last of a text that goes on, and this one "
                f"{'has ended' if self._is_closed else 'has none yet'}: call it after next(), and before close()"
            )

    # Statistics

    def tally(self) -> Tally:
        """The statistics so far; after the end, the final ones."""
        if self._tally is not None:
            return self._tally
        slot = self._slot
        return Tally.of(
            self._counters,
            num_tokens=self._num_tokens,
            num_appended_tokens=self._num_appended,
            total_seconds=self._last_active - self._started,
            verify=self._rule,
            rollback=self._rollback,
            fallback_reason=self._request.fallback_reason or self._draft_unusable() or self._drafting_stopped or None,
            extra_sample_seconds=self._sample_seconds,
            kernels=str(slot.model.settings.kernels),
            batch_invariant=slot.sequence.decoder.batch_invariant,
            backend_notes=prepare_backend().notes,
        )

    @property
    def _num_tokens(self) -> int:
        """How many generated tokens the caller has got."""
        return self._end - self._prompt_size - self._num_appended

    @property
    def _num_left(self) -> int:
        """How many more tokens may follow, by ``max_tokens`` or the context. Negative if the prompt does not fit."""
        most = self._request.max_tokens
        return self._slot.model.n_ctx - self._end if most is None else most - self._num_tokens

    @property
    def _is_complete(self) -> bool:
        return self._num_left <= 0 and (self.has_begun or self._end <= self._slot.model.n_ctx)

    def end(self) -> Tally | None:
        """End the text: it is over, or another takes the caches. Returns its statistics; None if it never began."""
        if self.has_begun and not self._has_ended:
            self._tally = self.tally()
            self._slot.account.earlier.add(self._slot.position.ids[self._prompt_size : self._end])
        self._has_ended = True
        self._processors.clear()  # the loop refers to this list, and would keep the functions alive until the next text
        return self._tally

    def tell_end(self) -> None:
        """Notify the listener of the end. An error of the listener is kept, and ``close`` raises it for the reader."""
        if self._is_heard and self._tally is not None:
            self._is_heard = False
            try:
                self._request.listener.end(self._tally)
            except StopIteration as error:
                self._error = _no_end(error)
            except Exception as error:
                self._error = error

    def _draft_unusable(self) -> str | None:
        draft = self._draft
        return None if draft is None or self._request.options.most_draft_tokens == 0 else draft.unusable

    def _look_at_loop(self) -> None:
        # Another thread may read statistics while a round runs, so `tally` uses these copies and not the loop.
        self._counters = self._loop.counters
        self._drafting_stopped = self._loop.drafting_stopped

    # The prompt

    def _begin(self) -> None:
        slot, request = self._slot, self._request
        slot.model.require_open()
        if request.chooser is not None:
            slot.require_alone("mirostat")
        held = slot.position.tokens() if request.reset else ()
        tokens = token_ids(request.tokens, "the prompt", slot.model.n_vocab, held)
        # Sampler and constraint are made before `slot.begin`, so that a bad request does not end the text in the slot.
        sampler = request.sampler(request.options.samplers.breakers(slot.model))
        constraint = None if request.constraint is None else request.constraint.over(slot.model)
        self._started = self._last_active = time.perf_counter()
        self._number = slot.begin(self)
        if request.reset:
            slot.keep_lost(tokens)
        self._loop, self._draft = slot.loop, slot.draft
        self._num_changes = slot.position.num_changes
        if not request.reset and slot.position.evaluated:
            tokens = np.concatenate([slot.position.ids[: slot.position.evaluated], tokens])
            self._prompt_size = self._end = len(tokens)
        held_before = slot.sequence.num_tokens
        try:
            self._begin_loop(tokens, sampler, constraint)
            if request.reset:
                slot.recall(tokens)
            self._look_at_loop()
            if self._draft is not None and request.chooser is None and self._draft_unusable() is None:
                self._rollback = slot.sequence.decoder.rollback
            slot.position.ids[: len(tokens)] = tokens
            self.has_begun = True
        except BaseException:  # Ctrl-C, too: the memory may have been cut already
            left, position = slot.sequence.num_tokens, slot.position
            position.move(min(position.evaluated, left) if left < held_before else position.evaluated, left)
            raise
        self._note(None)
        self._is_heard = True
        request.listener.begin(self.tally)  # last, because the listener may use the engine

    def _begin_loop(
        self, tokens: npt.NDArray[np.int32], sampler: _core.SamplerParams, constraint: _core.Constraint | None
    ) -> None:
        slot, request, options = self._slot, self._request, self._request.options
        num_draft_tokens = 0 if request.chooser else options.most_draft_tokens
        if num_draft_tokens > 0 and self._draft is not None:
            self._draft.refresh()
        if num_draft_tokens > 0 and not slot.claim(self._draft):
            num_draft_tokens = 0
        if request.chooser is not None:
            request.chooser.begin(self._processors)
            if self._draft is not None and options.most_draft_tokens > 0:
                slot.account.warn_once(f"{request.chooser.reason}: decoding plainly, without the draft")
        if slot.account.examples is not None and request.learns and request.chooser is None:
            self._examples = KeptText(slot.account.examples, len(tokens))
        # The loop keeps this function. It must not refer to this generation, which would then stay alive.
        processor = functools.partial(_processed, self._processors, slot.position)
        self._loop.begin(
            tokens,
            sampler=sampler,
            rule=self._rule,
            num_draft_tokens=num_draft_tokens,
            seed=request.seed & (2**64 - 1),
            paced=options.paced,
            max_tokens=max(0, self._num_left),
            logits_processor=processor if self._processors and not request.chooser else None,
            constraint=constraint,
            poll=None if request.listener is SILENT else request.listener.poll,
            keeps_logits=request.keeps_logits,
            corpus=np.append(slot.account.earlier.corpus(), np.asarray(request.lookup_corpus, dtype=np.int32)),
            num_likely=0 if self._examples is None else LIKELY,
        )

    # Rounds

    def _round(self) -> Iterable[tuple[int, Origin]]:
        """Run a round. Returns its new tokens and their origins."""
        request, loop = self._request, self._loop
        request.listener.poll()
        self._claim_draft()
        self._require_undisturbed()  # the listener, or the draft's owner, may have changed the memory
        self._slot.account.note_use()
        while loop.prefill():
            self._slot.account.note_use()
            self._look_at_loop()
            request.listener.poll()  # Python handles signals here, too
            self._require_undisturbed()
            self._slot.keep_progress()
        if not loop.round_is_open:
            self._row = -1
            if self._examples is not None:  # the reader has all tokens of the rounds so far
                self._examples.take(loop)
        if request.chooser is not None:
            return self._plain_round(request.chooser)
        # The first token is not drafted, so that it comes early. The rule is the same when the memory already holds the
        # whole prompt, so that a seed always leads to the same rounds.
        may_draft = request.drafts_first or self._end > self._prompt_size
        done = loop.step(max(1, self._num_left) if may_draft else 1)
        self._look_at_loop()
        if self._drafting_stopped and self._draft_unusable() is None:
            self._slot.account.warn_once(f"{self._drafting_stopped}: decoding plainly from here on")
        num_drafted, num_accepted = done.num_drafted, done.num_accepted
        last: Origin = "plain" if num_drafted == 0 else "bonus" if num_accepted == num_drafted else "correction"
        sources = loop.sources()[:num_accepted] if num_accepted else ()
        origins: list[Origin] = [_ORIGINS[source] for source in sources]
        # A round that is still open has only given accepted tokens so far; those up to `_row` were handed out before.
        return itertools.islice(zip(done.tokens, [*origins, last], strict=False), self._row + 1, None)

    def _plain_round(self, chooser: Chooser) -> Iterable[tuple[int, Origin]]:
        """Run a round without drafts, in which the chooser (mirostat) chooses the token."""
        self._loop.decode_pending()
        self._note(self._end)  # a logits processor of the chooser may read the text so far from the Llama
        start = time.perf_counter()
        token = chooser.sample()
        self._sample_seconds += time.perf_counter() - start
        self._require_undisturbed()  # a logits processor may have changed the memory
        self._loop.extend(np.array([token], dtype=np.int32))
        self._look_at_loop()
        return [(token, "plain")]

    def _hand_out(self) -> int | None:
        self._row += 1
        stops = self._stops()
        self._require_undisturbed()  # a criterion or a processor may have called eval, reset or load_state
        if stops:
            self._evaluated = self._end
            return None
        token, self.origin = self._waiting.popleft()
        ids = self._slot.position.ids
        if self._end < len(ids):
            ids[self._end] = token
        self._evaluated = self._end  # the new token itself is not evaluated yet
        self._end += 1
        self._note(self._evaluated)
        self._last_active = time.perf_counter()
        return token

    def _stops(self) -> bool:
        if not self._criteria:
            return False
        self._note(self._end)  # a criterion may read the text so far from the Llama
        history, logits = self._slot.position.ids[: self._end], self._loop.logits(self._row)
        answers = [criterion(history, logits) for criterion in self._criteria]  # all are called, as in llama_cpp
        self.stopped_by_criteria = any(answers)
        return self.stopped_by_criteria

    def _claim_draft(self) -> None:
        if self._request.options.most_draft_tokens > 0 and self._request.chooser is None:
            self._slot.claim(self._draft)
        elif self._draft is not None:
            self._draft.notice_closing()

    # The memory

    def _note(self, evaluated: int | None) -> None:
        """Set in the position how many tokens are evaluated (None: as many as held), and how many the memory holds."""
        # Rejected tokens may still be in the memory, from the place of the last token on.
        held = min(self._end - 1, self._slot.sequence.num_tokens)
        self._slot.position.move(held if evaluated is None else evaluated, held)

    def _note_after_an_error(self) -> None:
        """Set the position to what the memory holds after an error: a failed decode may have emptied the memory."""
        if self._slot.is_under_way(self._number) and self._is_undisturbed():
            self._note(None)

    def _is_undisturbed(self) -> bool:
        return self._slot.position.num_changes == self._num_changes

    def _require_undisturbed(self) -> None:
        if self._has_ended or not self._slot.is_under_way(self._number):
            raise RuntimeError(
                "this generation was ended by a later one on the same Llama: finish one before starting the next, "
                "or create one Llama for each"
            )
        self._slot.model.require_open()
        if not self._is_undisturbed():
            raise RuntimeError(
                "the state of this Llama was changed during a generation (by eval, reset or load_state): "
                "finish the generation first"
            )

    def leave(self) -> None:
        """See ``slot.UnderWay``."""
        slot = self._slot
        if self.has_begun and self._end == self._prompt_size:
            self._last_active = time.perf_counter()
        # If reset, eval or load_state has changed the memory meanwhile, they have set the position, too.
        ours = self.has_begun and slot.model.is_open and self._is_undisturbed()
        held: int | None = None
        try:
            if ours:
                if self._draft is not None:
                    self._draft.notice_closing()
                held = self._loop.finish(self._end, self._num_appended)
                if self._examples is not None:
                    self._examples.take(self._loop, all_rows=True)
                    self._examples.end(slot.position.ids[: self._end])
                slot.keep_text(self._last_active - self._started)
        finally:
            if ours:
                self._note(self._evaluated)
            if held is not None:
                slot.position.held = held
            if self.has_begun:
                self._look_at_loop()  # an interrupted round has changed the counters, too
            slot.end(self, self._number)


def _count(tokens: Any) -> int:
    try:
        return len(tokens)
    except TypeError:
        raise TypeError(
            f"the prompt must be a sequence of token ids, not of the type {type(tokens).__name__}"
        ) from None


def _no_end(error: StopIteration) -> RuntimeError:
    """The RuntimeError in place of a function's StopIteration, after which the text would seem to be over."""
    other = RuntimeError("a function that this text has called raised StopIteration")
    other.__cause__ = error
    return other


def _processed(
    processors: list[Callable[..., Any]],
    position: Position,
    input_ids: npt.NDArray[np.intc],
    scores: npt.NDArray[np.single],
) -> Any:
    """Apply the logits processors to the scores, one after the other. They may read the text so far from the Llama."""
    with position.reporting(input_ids):
        for processor in processors:
            scores = processor(input_ids, scores)
    return scores
