"""A draft model whose tokenizer is not the target's."""

from __future__ import annotations

from typing import Any

from specllama import _core
from specllama.engine.model import Model
from specllama.engine.other_tokenizer import Foreign
from specllama.warn import warn

from .decoding import DecodingDraft
from .draft import Sequences
from .draft_options import DraftOptions
from .vocabulary import DraftVocabulary


class ForeignDraft(DecodingDraft):
    """A draft model with another tokenizer. It reads the text in its own tokens.

    It drafts only tokens whose text is also a token of the target (TLI: Timor et al., ICML 2025, arXiv 2502.05202). It
    never drafts special tokens. In place of a special token of the target, the draft reads its own token of the same
    name or role, or nothing if there is no such token.

    Args:
        target: the model that this model drafts for.
        model: the draft model.
        options: the user's options.
        foreign: the translation between the two vocabularies.
        more: the base class's other arguments.

    Raises:
        ValueError: the model keeps no KV cache, or an option is for drafts with the target's tokenizer.
    """

    name = "draft"

    def __init__(self, target: Model, model: Model, options: DraftOptions, foreign: Foreign, **more: Any) -> None:
        if options.draft_mask_token is not None:
            raise ValueError(
                "draft_mask_token is for a parallel draft of the target's own tokenizer, and this draft has another: "
                "leave it out"
            )
        if options.inner is not None:
            raise ValueError(
                f"draft_kwargs={{'draft_model': {options.inner!r}}} is for a draft of the target's own tokenizer, and "
                "this draft has another: leave it out"
            )
        super().__init__(target, model, window=options.draft_window, **more)
        self._translation = foreign.translation
        self._vocabulary = DraftVocabulary(target, model, options.draft_vocabulary, is_same=False)
        warn(
            f"the draft has another tokenizer than the target, and {foreign.translation.num_common:,} of its "
            f"{foreign.translation.num_of_text:,} tokens ({foreign.share}): it drafts these, and less is accepted than "
            "of a draft of the target's family; draft_model='lookup' may be faster"
        )

    def drawer(self, sequences: Sequences | None) -> _core.Drafter:
        """See the base class."""
        return _core.Drafter.foreign(
            self.sequence_of(sequences), self._translation, window=self.window, tokens=self._vocabulary.tokens
        )
