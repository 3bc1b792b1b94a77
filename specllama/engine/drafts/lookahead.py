"""Lookahead decoding (Fu et al. 2024, arXiv 2402.02057): the target drafts for itself, in rows beside the text's."""

from __future__ import annotations

import dataclasses
from typing import Any, NoReturn

from specllama import _core
from specllama.engine.model import Model
from specllama.engine.options import checked_index

from .draft import GRAMMAR, Draft, DraftKind, Loader, Sequences
from .draft_options import LOOKAHEAD, DraftOptions

_WAY_OUT = "take draft_model='lookup'"


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much is looked ahead.

    The defaults are smaller than those of llama.cpp's ``examples/lookahead`` (15, 5, 15): fewer than half the rows, and
    as many tokens a round, since a round verifies one n-gram and not fifteen.

    Attributes:
        window: W, how many places behind the text are guessed at once.
        n_gram: N, tokens of an n-gram with the one that it begins with. N - 1 is the most that a round drafts.
        guesses: G, how many n-grams are kept that begin with one token.

    Raises:
        TypeError: no int.
        ValueError: an int that is out of range.
    """

    window: int = 7
    n_gram: int = 5
    guesses: int = 7

    def __post_init__(self) -> None:
        """See the class."""
        for name, value in vars(self).items():
            checked_index(name, value, "an int")
        self.native()

    def native(self) -> _core.LookaheadWindow:
        """What the drafter goes by.

        Raises:
            ValueError: a number that is out of range.
        """
        return _core.LookaheadWindow(window=self.window, n_gram=self.n_gram, guesses=self.guesses)

    @property
    def rows(self) -> int:
        """Rows of each batch beside the text's."""
        return self.window * (self.n_gram - 1) - 1


class LookaheadDraft(Draft):
    """The window and the pool of one text."""

    is_paced = False

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(LOOKAHEAD, None)
        self.sizes = sizes

    def loop(
        self, target: _core.Sequence, own: Sequences | None = None, scheduler: _core.Scheduler | None = None
    ) -> _core.Speculator:
        """See the base class."""
        return _core.Speculator(target, [GRAMMAR, LOOKAHEAD], lookahead=self.sizes.native(), scheduler=scheduler)

    def require_several(self) -> NoReturn:
        """See the base class."""
        raise ValueError(
            "draft_model='lookahead' drafts for one text at a time: take max_parallel=1 (--parallel 1), or another "
            "draft for several texts at once, such as 'lookup'"
        )


class Lookahead(DraftKind):
    """Lookahead decoding, by its name."""

    takes = frozenset({"draft_kwargs"})

    def __init__(self, options: DraftOptions) -> None:
        super().__init__(options)
        given = dict(options.draft_kwargs or {})
        known = [field.name for field in dataclasses.fields(Sizes)]
        if unknown := sorted(given.keys() - {*known}):
            raise ValueError(f"draft_kwargs of 'lookahead' may have {', '.join(known)}: leave {', '.join(unknown)} out")
        self._sizes = Sizes(**given)

    @classmethod
    def is_meant(cls, given: Any) -> bool:
        """See the base class."""
        return isinstance(given, str) and given == LOOKAHEAD

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
        if not target.is_shareable:
            raise ValueError(
                "draft_model='lookahead' needs a plain KV cache, and the target's is recurrent or has a sliding "
                f"window: {_WAY_OUT}"
            )
        if not (params.kv_unified and params.n_seq_max > sizes.window):
            raise ValueError(
                f"the target's context has no room for lookahead with window={sizes.window}: give "
                "draft_model='lookahead' where you create the Llama"
            )
        if target.settings.n_batch < sizes.rows + sizes.n_gram:
            raise ValueError(
                f"n_batch={target.settings.n_batch} is too small for lookahead: a batch has window * (n_gram - 1) - 1 "
                f"= {sizes.rows} rows beside the {sizes.n_gram} of the text. Take n_batch={sizes.rows + sizes.n_gram} "
                "or more, or a smaller window in draft_kwargs"
            )
        return LookaheadDraft(sizes)
