"""MTP layers (multi-token prediction) in the target's own file (DeepSeek-V3, arXiv 2412.19437, section 2.2)."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import llama_cpp

from specllama.engine.hidden import Hidden, of_mtp, shown_to_mtp
from specllama.engine.model import Model, OpenedModel
from specllama.engine.opening import made_context
from specllama.models.loading import captured_errors, one_at_a_time, quiet, why_no_context

from .decoding import freed_after_errors
from .draft import DrawingKind, Loader
from .head import OF_A_HEAD, HeadDraft

MTP = "mtp"


class OwnMtp(DrawingKind):
    """The kind of draft that is the MTP layers of the target's file.

    One layer runs once for each token that it drafts. Several layers take turns.
    """

    takes = OF_A_HEAD
    drafter = HeadDraft.drafter

    @classmethod
    def is_meant(cls, given: Any) -> bool:
        """See the base class."""
        return isinstance(given, str) and given == MTP

    def shown(self, target: str) -> Hidden:
        """See the base class."""
        return shown_to_mtp(target)

    def open(self, target: Model, loader: Loader) -> HeadDraft:
        """See the base class. The layers use the target's weights, with a context of their own."""
        corpus, own = self.corpus(target, loader), target.settings
        shown = shown_to_mtp(own.path)
        if own.hidden != shown:
            raise ValueError(
                "the target was opened without its MTP layers: give draft_model='mtp' where you create the Llama"
            )
        hidden = of_mtp(int(llama_cpp.llama_model_n_embd(target.address)), shown.num_layers)
        params = own.params_of_another()
        taps = hidden.make_with(params)
        with one_at_a_time(), captured_errors() as errors, quiet(own.verbose):
            context = made_context(target.address, params, taps)
        if not context.address:
            raise MemoryError(f"no context for the MTP layers: {why_no_context(errors, 'take a smaller n_ctx (-c)')}")
        hidden.begin(context.address)
        settings = dataclasses.replace(own, context_params=params, hidden=hidden)
        weights = contextlib.ExitStack()  # they belong to the target
        weights.enter_context(target.kept())
        model = OpenedModel(target.address, context.address, settings, (context, weights), name="draft", taps=taps)
        with freed_after_errors(model.close):
            return HeadDraft(target, model, corpus, given=MTP, window=self.options.draft_window, close=model.close)
