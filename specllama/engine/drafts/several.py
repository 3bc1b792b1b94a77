"""A head and a model that draft for one target. Each round uses the draft that promises the largest speedup."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from specllama import _core
from specllama.engine.hidden import Hidden
from specllama.engine.model import Model

from .draft import Draft, DraftKind, DrawingDraft, DrawingKind, Loader, Sequences
from .draft_options import DraftOptions


class CombinedDraft(Draft):
    """A head and a model that both draft for the target.

    Args:
        both: the head, then the model.
        corpus: tokens [n] to look up besides the text.
    """

    also_looks_up = True

    def __init__(self, both: Sequence[DrawingDraft], corpus: npt.NDArray[np.int32]) -> None:
        super().__init__([draft.given for draft in both], None)
        self.both = both
        self.models = {name: model for draft in both for name, model in draft.models.items()}
        self._corpus = corpus
        self.notice_closing()

    @property
    def label(self) -> str:
        """The names of both drafts."""
        return " and ".join(draft.label for draft in self.both)

    @property
    def timed(self) -> Mapping[str, Model | None]:
        """See the base class."""
        return {name: model for draft in self.both for name, model in draft.timed.items()}

    @property
    def reopened_by(self) -> list[Any]:
        """See the base class."""
        return [draft.reopened_by for draft in self.both]

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """See the base class."""
        with self.both[0].kept(), self.both[1].kept():
            yield

    def refresh(self) -> None:
        """See the base class."""
        for draft in self.both:
            draft.refresh()

    def drafters(self, sequences: Sequences | None = None) -> list[_core.Drafter]:
        """See the base class."""
        drawers = [draft.drawer(sequences) for draft in self.both]
        return [_core.Drafter.grammar(), _core.Drafter.lookup(self._corpus), *drawers]

    def notice_closing(self) -> None:
        """See the base class."""
        for draft in self.both:
            draft.notice_closing()
            self.unusable = self.unusable or draft.unusable

    def claim(self) -> None:
        """See the base class."""
        for draft in self.both:
            draft.claim()
        self.notice_closing()

    def forget(self) -> None:
        """See the base class."""
        for draft in self.both:
            draft.forget()

    def close(self) -> None:
        """See the base class."""
        try:
            self.both[0].close()
        finally:  # also if Ctrl-C comes while the head is freed
            self.both[1].close()


class HeadAndModel(DraftKind):
    """The kind of draft that is a list of a head and a model.

    Args:
        options: the user's options for the two drafts. Each draft gets the options that it takes. ``draft_kwargs`` go
            to the model if the model is given by its path, and to the head otherwise.
        kinds: the kind of each draft.
        given: the user's value for each draft.

    Raises:
        ValueError: the list is no such pair, or neither draft takes an option.
    """

    def __init__(self, options: DraftOptions, kinds: Sequence[type[DraftKind]], given: Sequence[Any]) -> None:
        super().__init__(options)
        both = [(kind, one) for kind, one in zip(kinds, given, strict=True) if issubclass(kind, DrawingKind)]
        both.sort(key=lambda of_one: of_one[0].role)
        if len(given) > len(both) or [kind.role for kind, _ in both] != ["head", "model"]:
            raise ValueError(
                f"draft_model={[*given]!r:.200} must be a head and a smaller model, if it is a list. Lookup is used "
                "beside any draft, and need not stand in it"
            )
        of_head, of_model = (kind.takes for kind, _ in both)
        if "draft_kwargs" in of_model:
            of_head -= {"draft_kwargs"}
        options.require_taken(of_head | of_model)
        self._both = [
            kind(options.of(one, takes)) for (kind, one), takes in zip(both, (of_head, of_model), strict=True)
        ]
        self.opened_with = self._both[1].opened_with

    def hidden_states(self, target: str) -> Hidden | None:
        """See the base class."""
        return self._both[0].hidden_states(target)

    def open(self, target: Model, loader: Loader) -> CombinedDraft:
        """See the base class. If the model cannot be opened, the head is closed again."""
        with contextlib.ExitStack() as stack:
            drafts = []
            for kind in self._both:
                drafts.append(kind.open(target, loader))
                stack.callback(drafts[-1].close)
            combined = CombinedDraft(drafts, self.corpus(target, loader))
            stack.pop_all()
        return combined
