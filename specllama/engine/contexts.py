"""The native side of several texts: contexts with several sequences, and the scheduler that decodes for all of them."""

from __future__ import annotations

import contextlib
import dataclasses

import llama_cpp

from specllama import _core
from specllama.backend.owned import Closable
from specllama.models.loading import captured_errors, one_at_a_time, quiet, why_no_context

from .closed_when_gone import ClosedWhenGone
from .context_plan import most_snapshots
from .drafts.draft import Draft
from .model import Model
from .opening import made_context


class Contexts(ClosedWhenGone):
    """A further context of the target, and one of each model of its draft. The models' own contexts stay as they are.

    A model's contexts share its weights. Each further context has ``count`` sequences of ``n_ctx`` tokens in one cache,
    so that prompts which begin alike share their cells. If the cache has room for fewer tokens, texts wait for each
    other.

    Args:
        model: the target.
        draft: the draft; None for plain decoding.
        count: the largest number of texts at once.
        cache_tokens: how many tokens of all texts together the cache holds; None: ``n_ctx`` for each text.

    Raises:
        MemoryError: there is no room for the caches.
        ValueError: ``cache_tokens`` is less than one text may need.
    """

    def __init__(self, model: Model, draft: Draft | None, count: int, cache_tokens: int | None = None) -> None:
        self._kept = contextlib.ExitStack()
        self._address = 0  # of the target's context
        self._parts: list[Closable] = [self._kept]  # closed in reverse order
        try:
            self._target = self._decoder(model, "target", count, cache_tokens)
            self._drafts = self._draft_decoders(draft, count, cache_tokens)
            self.scheduler = _core.Scheduler(self._target, [*self._drafts.values()])
            self._parts.append(self.scheduler)
        except BaseException:
            self.close()
            raise

    def sequences(self, number: int) -> tuple[_core.Sequence, dict[str, _core.Sequence]]:
        """The target's sequence for one slot, and the sequences of the draft's models. Call it once for each slot."""
        drafts = {name: _core.Sequence(decoder, number) for name, decoder in self._drafts.items()}
        return _core.Sequence(self._target, number), drafts

    def end(self) -> None:
        """Have every decode that is under way, and every later one, raise ClosedError."""
        self.scheduler.close()

    def close(self) -> None:
        """Free all contexts. Texts that are under way get ClosedError; they must not read logits meanwhile.

        If Ctrl-C has interrupted a call, a further call frees what is still there.
        """
        for part in reversed(getattr(self, "_parts", ())):  # none if __init__ failed early
            part.close()

    def _draft_decoders(self, draft: Draft | None, count: int, cache_tokens: int | None) -> dict[str, _core.Decoder]:
        if draft is None or draft.unusable is not None:
            return {}
        try:
            self._kept.enter_context(draft.kept())
        except _core.ClosedError:  # the draft's owner has closed it meanwhile
            draft.notice_closing()
            return {}
        return {name: self._decoder(model, "draft", count, cache_tokens) for name, model in draft.models.items()}

    def _decoder(self, model: Model, name: str, count: int, cache_tokens: int | None) -> _core.Decoder:
        n_ctx = model.n_ctx
        size = n_ctx * count
        settings = model.settings
        # A head's cache always has the full size: the target's states that a head has read cannot be computed again.
        if cache_tokens is not None and not settings.is_head:
            if cache_tokens < model.n_ctx_asked:
                raise ValueError(
                    f"cache_tokens={cache_tokens} is less than n_ctx={n_ctx} of the {name}, which one text may "
                    "fill: take a larger cache_tokens (--cache-tokens), or a smaller n_ctx (-c)"
                )
            size = min(size, max(cache_tokens, n_ctx))
        if settings.hidden is not None and settings.hidden.memory is not None:  # then the target's context is there
            hidden = dataclasses.replace(settings.hidden, target=self._address, memory=self._target)
            settings = dataclasses.replace(settings, hidden=hidden)
        params = settings.params_of_another()
        spare = 1 if settings.has_spare and count < llama_cpp.llama_max_parallel_sequences() else 0
        params.n_ctx, params.n_seq_max, params.kv_unified = max(size, count), count + spare, True
        if hasattr(params, "n_rs_seq"):
            params.n_rs_seq = min(int(settings.context_params.n_rs_seq), most_snapshots(count))
        # llama.cpp asserts that a batch has room for a row of each sequence. Each batch is computed at once: the second
        # part of one would move recurrent states of texts of the first part, but not their snapshots.
        params.n_batch = params.n_ubatch = max(min(params.n_batch, params.n_ubatch), params.n_seq_max)
        taps = None if settings.hidden is None else settings.hidden.make_with(params)
        # `quiet`, because llama.cpp would warn about n_ctx, as if it were the size of one text and not of all.
        with one_at_a_time(), captured_errors() as errors, quiet(settings.verbose):
            context = made_context(model.address, params, taps)
        if not context.address:
            smaller = (
                "take a smaller max_parallel (--parallel) or cache_tokens (--cache-tokens), or create the Llama with a "
                "smaller n_ctx (-c)"
            )
            why = why_no_context(errors, smaller)
            if not why.endswith(smaller):
                raise RuntimeError(f"no context for {count} texts with the {name}: {why}")
            raise MemoryError(f"there is no room for {count} texts of n_ctx={n_ctx} tokens with the {name}: {why}")
        self._parts.append(context)
        if name == "target":
            self._address = context.address
        if settings.hidden is not None:
            settings.hidden.begin(context.address)
        if settings.lora is not None:
            settings.lora.apply(context.address)
        settings = dataclasses.replace(settings, context_params=params)
        decoder = settings.decoder(context.address, name, taps, n_ctx, count)
        self._parts.append(decoder)
        return decoder
