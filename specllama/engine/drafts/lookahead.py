"""Lookahead decoding (Fu et al. 2024, arXiv 2402.02057): the target drafts for itself, in extra rows of each batch."""

from __future__ import annotations

import dataclasses
from typing import NoReturn

from specllama import _core
from specllama.engine.model import Model
from specllama.engine.options import checked_index

from .draft import Draft, DraftKind, Loader, Sequences
from .draft_options import DraftOptions

LOOKAHEAD = "lookahead"
_WAY_OUT = "take draft_model='lookup'"


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of lookahead decoding.

    The defaults are smaller than those of llama.cpp's ``examples/lookahead`` (15, 5, 15). A batch has fewer than half
    the rows, and a round still gives as many tokens, because a round verifies one n-gram here, and 15 there.

    Attributes:
        window: W, how many positions after the text are guessed at once.
        n_gram: N, the number of tokens in an n-gram. The first of them is known, so a round drafts at most N - 1.
        guesses: G, how many n-grams are kept for each first token.

    Raises:
        TypeError: a size is no int.
        ValueError: a size is out of range.
    """

    window: int = 7
    n_gram: int = 5
    guesses: int = 7

    def __post_init__(self) -> None:
        """Check the sizes."""
        for name, value in vars(self).items():
            checked_index(name, value, "an int")
        self.native()

    def native(self) -> _core.LookaheadWindow:
        """The sizes as the native drafter takes them.

        Raises:
            ValueError: a size is out of range.
        """
        return _core.LookaheadWindow(window=self.window, n_gram=self.n_gram, guesses=self.guesses)

    @property
    def rows(self) -> int:
        """The number of rows in each batch besides the rows of the text and its draft."""
        return self.window * (self.n_gram - 1) - 1


class LookaheadDraft(Draft):
    """Lookahead decoding for one text: its window and its pool of n-grams."""

    is_paced = False

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(LOOKAHEAD, None)
        self.sizes = sizes

    def drafters(self, sequences: Sequences | None = None) -> list[_core.Drafter]:
        """See the base class."""
        return [_core.Drafter.grammar(), _core.Drafter.lookahead(self.sizes.native())]

    def require_several(self) -> NoReturn:
        """See the base class."""
        raise ValueError(
            "draft_model='lookahead' drafts for one text at a time: take max_parallel=1 (--parallel 1), or another "
            "draft for several texts at once, such as 'lookup'"
        )


class Lookahead(DraftKind):
    """The kind of draft with the name ``"lookahead"``."""

    name = LOOKAHEAD
    takes = frozenset({"draft_kwargs"})

    def __init__(self, options: DraftOptions) -> None:
        super().__init__(options)
        given = dict(options.draft_kwargs or {})
        known = [field.name for field in dataclasses.fields(Sizes)]
        if unknown := sorted(given.keys() - {*known}):
            raise ValueError(f"draft_kwargs of 'lookahead' may have {', '.join(known)}: leave {', '.join(unknown)} out")
        self._sizes = Sizes(**given)

    @property
    def num_branches(self) -> int:
        """See the base class."""
        return self._sizes.window

    def open(self, target: Model, loader: Loader) -> LookaheadDraft:
        """See the base class."""
        sizes, params = self._sizes, target.settings.context_params
        if params.embeddings:
            raise ValueError(
                f"draft_model='lookahead' needs a context that generates alone: leave embedding=True out, or {_WAY_OUT}"
            )
        if target.sequence.decoder.rollback != "seq_rm" or target.settings.has_recurrent_tensors:
            raise ValueError(
                "draft_model='lookahead' needs a plain KV cache, and the target's is recurrent or has a sliding "
                f"window: {_WAY_OUT}"
            )
        least = sizes.rows + sizes.n_gram
        if target.settings.n_batch < least:
            raise ValueError(
                f"n_batch={target.settings.n_batch} is too small for lookahead: a batch has window * (n_gram - 1) - 1 "
                f"= {sizes.rows} rows beside the {sizes.n_gram} of the text. Take n_batch={least} and n_ctx={least} "
                "or more, or a smaller window in draft_kwargs"
            )
        if not (params.kv_unified and params.n_seq_max > sizes.window):
            raise ValueError(
                f"the target's context has no room for lookahead with window={sizes.window}: give "
                "draft_model='lookahead' where you create the Llama"
            )
        return LookaheadDraft(sizes)
