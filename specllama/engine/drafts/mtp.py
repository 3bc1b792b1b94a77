"""MTP layers (multi-token prediction; DeepSeek-V3, arXiv 2412.19437, section 2.2), in the target's file or another."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

from specllama.engine.hidden import Hidden
from specllama.engine.model import Model, OpenedModel
from specllama.engine.opening import made_context
from specllama.models.loading import captured_errors, one_at_a_time, quiet, why_no_context
from specllama.models.mtp_file import MtpFile

from .decoding import freed_after_errors
from .draft import DrawingKind, Loader
from .head import OF_A_HEAD, DecodingHead, HeadDraft

MTP = "mtp"
_STATES = ("h_nextn",)


class MtpInFile(DecodingHead[MtpFile]):
    """The kind of draft that is MTP layers in a file of their own."""

    form = MtpFile

    def hidden_states(self, target: str) -> Hidden:
        """See the base class."""
        return Hidden(_STATES, nextn=True)

    def hidden(self, target: Model) -> Hidden:
        """See the base class."""
        return _of_layers(target.address, self.file.num_layers)


class OwnMtp(DrawingKind):
    """The kind of draft that is the MTP layers of the target's file.

    A single layer runs once for each drafted token. Several layers take turns.
    """

    name = MTP
    role = "head"
    takes = OF_A_HEAD

    def hidden_states(self, target: str) -> Hidden:
        """See the base class."""
        return Hidden(_STATES, nextn=True, loads_mtp=True, num_layers=MtpFile.num_in_model(target))

    def open(self, target: Model, loader: Loader) -> HeadDraft:
        """See the base class. The layers use the target's weights, with a context of their own."""
        corpus, of_target = self.corpus(target, loader), target.settings
        wanted = self.hidden_states(of_target.path)
        if of_target.hidden != wanted:
            raise ValueError(
                "the target was opened without its MTP layers: give draft_model='mtp' where you create the Llama"
            )
        hidden = _of_layers(target.address, wanted.num_layers)
        params = of_target.params_of_another()
        taps = hidden.make_with(params)
        with one_at_a_time(), captured_errors() as errors, quiet(of_target.verbose):
            context = made_context(target.address, params, taps)
        if not context.address:
            raise MemoryError(f"no context for the MTP layers: {why_no_context(errors, 'take a smaller n_ctx (-c)')}")
        hidden.begin(context.address)
        settings = dataclasses.replace(of_target, context_params=params, hidden=hidden)
        weights = contextlib.ExitStack()  # keeps the target's weights, which the layers use, until the model is closed
        weights.enter_context(target.kept())
        model = OpenedModel(target.address, context.address, settings, (context, weights), name="draft", taps=taps)
        with freed_after_errors(model.close):
            return HeadDraft(target, model, corpus, given=MTP, window=self.options.draft_window, close=model.close)


def _of_layers(target: Any, num_layers: int) -> Hidden:
    """The states that the context of MTP layers shows, and the target's that it reads. `target`: its weights."""
    hidden = Hidden(_STATES, nextn=True, loads_mtp=True, num_layers=num_layers)
    return dataclasses.replace(hidden, n_features=hidden.width_of(target))
