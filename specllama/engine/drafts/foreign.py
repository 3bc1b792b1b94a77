"""A smaller model of another tokenizer as the draft."""

from __future__ import annotations

from typing import Any

from specllama.engine.model import Model
from specllama.engine.other_tokenizer import Foreign
from specllama.warn import warn

from .decoding import DecodingDraft
from .draft import Sequences
from .draft_options import DraftOptions
from .vocabulary import DraftVocabulary


class ForeignDraft(DecodingDraft):
    """A draft that reads the text in its own tokens, and drafts those whose text the target has for a token, too.

    TLI: Timor et al., ICML 2025, arXiv 2502.05202. Special tokens are never drafted. In place of one of the target's
    the draft reads its own of the same name or role, or nothing.

    Args:
        target: what it drafts for.
        model: the draft.
        options: what the user says of it.
        foreign: what both have in common.
        more: see the base class.

    Raises:
        ValueError: a model that keeps no KV cache, or an option that is for drafts of the target's tokenizer.
    """

    drafter = "foreign"
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

    def parts(self, own: Sequences | None) -> dict[str, Any]:
        """See the base class."""
        return {
            **super().parts(own),
            "draft_tokens": self._vocabulary.tokens,
            "draft_translation": self._translation,
        }
