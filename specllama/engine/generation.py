"""One generation: tokens out of the native loop, one at a time, and everything that can interrupt them."""

from __future__ import annotations

import collections
import itertools
import time
from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import llama_cpp
import numpy as np
import numpy.typing as npt

from specllama import _core
from specllama.backend.base_class import BaseLlama
from specllama.backend.kernel_use import use_of
from specllama.backend.prepare import prepare_backend
from specllama.grammars.schema import SchemaGrammar
from specllama.samplers.mirostat import LlamaCppSampler
from specllama.stats import Tally
from specllama.token import Origin

from .closed import is_open, require_open
from .prompt_tokens import token_ids
from .request import checked_callables
from .schema_constraint import schema_vocabulary
from .session import Session
from .vocabulary import grammar_of
from .watch import watch_of_call

if TYPE_CHECKING:
    from .request import Request

_ORIGINS = {drafter.name: cast(Origin, drafter.origin) for drafter in _core.drafters()}


def _constraint_of(llama: BaseLlama, grammar: Any) -> _core.Constraint | None:
    """A grammar or a schema over the tokens of a Llama."""
    if isinstance(grammar, SchemaGrammar):
        return schema_vocabulary(llama).constraint(grammar)
    return None if grammar is None else grammar_of(llama, grammar)


class Generation:
    """Runs one ``Request``. The caches are at a committed position whenever it is not running."""

    def __init__(self, session: Session, request: Request) -> None:
        self._session = session
        self._llama = session.llama
        self._request = request
        self._engine = session.engine
        self._rule = request.rule()
        self._waiting: collections.deque[tuple[int, Origin]] = collections.deque()  # of the last round, not handed out
        self._row = -1  # of the logits of the token handed out last
        self._prompt_size = self._position = len(request.tokens)  # _position: how much history the caller has
        self._started = 0.0
        self._last_active = 0.0
        self._sample_seconds = 0.0
        self._fallback_reason = request.fallback_reason()
        self._processors = llama_cpp.LogitsProcessorList(
            checked_callables("logits_processor", request.logits_processor)
        )
        self._criteria = checked_callables("stopping_criteria", request.stopping_criteria)
        self._own_sampler: LlamaCppSampler | None = None  # for text that is decoded plainly
        self._tally: Tally | None = None
        self._watch = watch_of_call()
        self.begun = False
        """Whether it has numbers to show."""
        self._rollback = "none"
        self._published = 0  # the n_tokens that this generation set
        self._evaluated: int | None = None  # llama_cpp's n_tokens for this text; None before the first token
        self._finished = False
        self.stopped_by_criteria = False
        self.origin: Origin = "plain"
        """Where the token yielded last came from."""

    def run(self) -> Generator[int, Sequence[int] | None, None]:
        """Yield the tokens. ``send(tokens)`` appends tokens of the caller's own behind the one just yielded."""
        try:
            with self._session.exclusive():
                self._begin()
            while (token := self._next()) is not None:
                own_tokens = yield token
                if own_tokens is not None:
                    self._append(own_tokens)
        finally:
            self._finish()

    def logits(self) -> npt.NDArray[np.single]:
        """The target's raw logits [n_vocab] from which the token yielded last was sampled."""
        return self._engine.logits(self._row)

    def acceptance_probability(self) -> float | None:
        """min(1, p/q) of the token yielded last; None unless it was drafted."""
        return self._engine.acceptance_probability(self._row)

    def tally(self) -> Tally:
        """The numbers so far."""
        if self._tally is not None:
            return self._tally
        return Tally.of(
            self._counters,
            num_tokens=self._position - self._prompt_size,
            total_seconds=self._last_active - self._started,
            verify=self._rule,
            rollback=self._rollback,
            fallback_reason=self._fallback_reason or self._drafting_stopped or self._draft_unusable(),
            extra_sample_seconds=self._sample_seconds,
            kernels=str(use_of(self._llama)),
            batch_invariant=self._session.target.decoder.batch_invariant,
            backend_notes=prepare_backend().notes,
        )

    def end(self) -> Tally | None:
        """It is over, or another generation takes over the caches. Gives its numbers; None if it never began."""
        if self.begun and not self._finished:
            self._tally = self.tally()
            if self._watch is not None:
                self._watch.end(self._tally)
        self._finished = True
        self._processors.clear()  # the engine holds the list until the next generation, and with it what they lead to
        return self._tally

    def disturb(self) -> None:
        """Somebody has put something else into the cache: this generation cannot go on."""
        self._published = -1

    def _draft_unusable(self) -> str | None:
        draft = self._session.draft
        return None if draft is None or self._request.options.most_draft_tokens == 0 else draft.unusable

    def _how_to_roll_back(self) -> str:
        if self._session.draft is None or self._fallback_reason or self._draft_unusable():
            return "none"
        return self._session.target.decoder.rollback

    def _begin(self) -> None:
        session, llama, request = self._session, self._llama, self._request
        require_open(llama)
        if self._fallback_reason:
            session.require_alone("mirostat")
        tokens = token_ids(request.tokens, "the prompt", llama.n_vocab())
        self._started = self._last_active = time.perf_counter()
        session.begin(self)
        self._engine = session.engine  # the draft may have been exchanged since the generator was made
        if not request.reset and llama.n_tokens:
            # llama_cpp's reset=False: the prompt continues what was evaluated before.
            tokens = np.concatenate([llama._input_ids, tokens])
            self._prompt_size = self._position = len(tokens)
        num_draft_tokens = 0 if self._fallback_reason else request.options.most_draft_tokens
        if num_draft_tokens > 0 and not session.claim_draft():
            num_draft_tokens = 0
        sampler = request.native_sampler(llama.last_n_tokens_size, request.options.samplers.breakers(llama))
        held = session.target.num_tokens
        constraint = _constraint_of(llama, request.grammar)
        try:
            self._engine.begin(
                tokens,
                sampler=sampler,
                rule=self._rule,
                num_draft_tokens=num_draft_tokens,
                seed=request.seed & (2**64 - 1),
                paced=request.options.paced,
                max_tokens=request.max_tokens,
                logits_processor=None if self._fallback_reason else self._processors or None,
                constraint=constraint,
                poll=None if self._watch is None else self._watch.heed,
                keeps_logits=request.keeps_logits,
            )
        except BaseException:
            left = session.target.num_tokens
            if left < held:  # it has been cut already
                llama.n_tokens = min(llama.n_tokens, left)
            session.memory.note(llama.n_tokens, left)
            raise
        self._look_at_engine()
        self.begun = True
        if self._watch is not None:
            self._watch.begin(self.tally)
        self._rollback = self._how_to_roll_back()
        llama.input_ids[: len(tokens)] = tokens
        self._publish(None)
        if self._fallback_reason:
            self._own_sampler = LlamaCppSampler(llama, request, self._processors)
            if session.draft is not None and request.options.most_draft_tokens > 0:
                session.warn_once(f"{self._fallback_reason}: decoding plainly, without the draft")

    def _next(self) -> int | None:
        """The next token; None if a stopping criterion ended the generation."""
        with self._session.exclusive():
            self._require_undisturbed()
            try:
                return self._next_token()
            except BaseException:
                # Said while no other thread can take over: a failed decode may have emptied the cache.
                if self._session.is_under_way(self) and self._llama.n_tokens == self._published:
                    self._publish(None)
                raise

    def _next_token(self) -> int | None:
        llama = self._llama
        if not self._waiting:
            self._heed_watch()
            self._claim_draft()
            while self._engine.prefill():
                self._heed_watch()  # here Python looks at signals, too
            if not self._engine.round_is_open:
                self._row = -1
            sampler = self._own_sampler
            self._waiting.extend(self._speculate() if sampler is None else self._plain_round(sampler))
            self._look_at_engine()
        self._row += 1
        stops = self._stops()
        self._require_undisturbed()  # a criterion or a processor may have called eval, reset or load_state
        if stops:
            self._evaluated = self._position
            return None
        token, self.origin = self._waiting.popleft()
        if self._position < len(llama.input_ids):
            llama.input_ids[self._position] = token
        self._evaluated = self._position  # all but this one
        self._position += 1
        self._publish(self._evaluated)
        self._last_active = time.perf_counter()
        return token

    def _heed_watch(self) -> None:
        if self._watch is not None:
            self._watch.heed()

    def _publish(self, n_tokens: int | None) -> None:
        """Says how many tokens are evaluated (None: as many as the cache holds), and how many the cache holds."""
        # What was rejected may be in the memory still: at the last token, never before.
        held = min(self._position - 1, self._session.target.num_tokens)
        self._llama.n_tokens = self._published = held if n_tokens is None else n_tokens
        self._session.memory.note(self._llama.n_tokens, held)

    def _claim_draft(self) -> None:
        if self._request.options.most_draft_tokens > 0 and not self._fallback_reason:
            self._session.claim_draft()
        elif self._session.draft is not None:
            self._session.draft.notice_closing()

    def _look_at_engine(self) -> None:
        # Statistics may be read by another thread while a round runs: they are made of copies.
        self._counters = self._engine.counters
        self._drafting_stopped = self._engine.drafting_stopped

    def _stops(self) -> bool:
        if not self._criteria:
            return False
        history, logits = self._llama.input_ids[: self._position], self.logits()
        answers = [criterion(history, logits) for criterion in self._criteria]  # each is asked, as in llama_cpp
        self.stopped_by_criteria = any(answers)
        return self.stopped_by_criteria

    def _speculate(self) -> Iterable[tuple[int, Origin]]:
        request = self._request
        left = request.max_tokens - (self._position - self._prompt_size)
        done = self._engine.step(max(1, left))
        num_drafted, num_accepted = done.num_drafted, done.num_accepted
        if self._engine.drafting_stopped:
            self._session.warn_once(f"{self._engine.drafting_stopped}: decoding plainly from here on")
        last: Origin = "plain" if num_drafted == 0 else "bonus" if num_accepted == num_drafted else "correction"
        sources = self._engine.sources()[:num_accepted] if num_accepted else ()
        origins: list[Origin] = [_ORIGINS[source] for source in sources]
        # A round that is open has come as far as its accepted tokens.
        return itertools.islice(zip(done.tokens, [*origins, last], strict=False), self._row + 1, None)

    def _plain_round(self, sampler: LlamaCppSampler) -> Iterable[tuple[int, Origin]]:
        """A round whose token llama.cpp's own sampler chooses."""
        self._engine.decode_pending()
        self._publish(self._position)  # a logits processor reads the history from the Llama
        start = time.perf_counter()
        token = sampler.sample()
        self._sample_seconds += time.perf_counter() - start
        self._engine.extend(np.array([token], dtype=np.int32))
        return [(token, "plain")]

    def _append(self, tokens: Sequence[int]) -> None:
        with self._session.exclusive():
            self._require_undisturbed()
            ids = token_ids(tokens, "what is sent", self._llama.n_vocab())
            end = self._position + len(ids)
            if end > self._llama.n_ctx():
                raise ValueError(
                    f"{len(ids)} tokens behind {self._position} do not fit into n_ctx={self._llama.n_ctx()}: "
                    "send fewer, or create the Llama with a larger n_ctx (-c)"
                )
            self._waiting.clear()
            self._engine.rewind(self._position)
            self._engine.extend(ids)
            self._llama.input_ids[self._position : end] = ids
            self._publish(self._evaluated)
            self._position = end

    def _require_undisturbed(self) -> None:
        llama = self._llama
        if self._finished or not self._session.is_under_way(self):
            raise RuntimeError(
                "this generation was ended by a later one on the same Llama: finish one before starting the next, "
                "or create one Llama for each"
            )
        require_open(llama)
        if llama.n_tokens != self._published:
            raise RuntimeError(
                "the state of this Llama was changed during a generation (by eval, reset or load_state): "
                "finish the generation first"
            )

    def _finish(self) -> None:
        """Leaves in the caches what the caller has seen, and nothing else."""
        if self._finished:
            return
        try:
            with self._session.exclusive():
                self._leave_caches()
        except (_core.BusyError, _core.ClosedError):
            self._finished = True  # another thread has taken over, is about to, or closes the Llama

    def _leave_caches(self) -> None:
        llama = self._llama
        if self.begun and self._position == self._prompt_size:
            self._last_active = time.perf_counter()
        # Whoever has changed the state in between (reset, eval, load_state) has said what the cache holds.
        ours = self.begun and is_open(llama) and llama.n_tokens == self._published
        held: int | None = None
        try:
            if ours:
                if self._session.draft is not None:
                    self._session.draft.notice_closing()
                held = self._engine.finish(self._position)
        finally:
            if ours:
                self._publish(self._evaluated)
                llama._requires_eval = True
            if held is not None:
                self._session.memory.note(llama.n_tokens, held)
            if self.begun:
                self._look_at_engine()  # a round that was interrupted has counted too
            self._session.end(self)
