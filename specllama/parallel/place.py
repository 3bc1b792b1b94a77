"""A place for one text: what its methods need of the Llama, over a sequence of its own."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from specllama import _core
from specllama.backend.base_class import BaseLlama
from specllama.backend.kernel_use import remember, use_of
from specllama.drafts.draft import Draft
from specllama.engine.memory import memory_of
from specllama.engine.session import Session


class DraftAtPlace(Draft):
    """The same draft, over the place's own sequence. Who loaded it frees it."""

    def __init__(self, draft: Draft, sequence: _core.Sequence | None) -> None:
        super().__init__(draft.given)
        self.unusable = draft.unusable
        self._draft = draft
        self._sequence = sequence

    def engine(
        self, target: _core.Sequence, own: _core.Sequence | None = None, scheduler: _core.Scheduler | None = None
    ) -> _core.Speculator:
        """See the base class."""
        if self.unusable is not None:
            return _core.Speculator(target, scheduler=scheduler)
        return self._draft.engine(target, own or self._sequence, scheduler)

    def pickled(self) -> object:
        """See the base class."""
        return self._draft.pickled()


def make_place(
    session: Session,
    draft: Draft | None,
    scheduler: _core.Scheduler,
    target: _core.Sequence,
    own: _core.Sequence | None,
) -> BaseLlama:
    """A Llama of the same class that works on these sequences. It shares the weights, and frees nothing.

    Args:
        session: that of the Llama whose place it is.
        draft: its draft.
        scheduler: what decodes for all places.
        target: the target's sequence.
        own: the draft model's sequence, if there is one.
    """
    llama = session.llama
    place: Any = object.__new__(type(llama))
    place.__dict__.update(llama.__dict__)
    place.__dict__.pop("_stack")  # what close() frees
    place.cache = None
    place.n_tokens = 0
    place.input_ids = np.zeros_like(llama.input_ids)
    remember(place, use_of(llama))
    memory_of(place).use(target)
    place.session = Session(place, session.options, place_of=session, scheduler=scheduler)
    if draft is not None:
        place.session.exchange_draft(DraftAtPlace(draft, own))
    return cast(BaseLlama, place)
