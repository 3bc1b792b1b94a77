"""What drafts by decoding: a model with a context of its own, be it a whole one or a head."""

from __future__ import annotations

import abc
import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from specllama import _core
from specllama.engine.model import Model
from specllama.engine.options import Options

from .draft import GRAMMAR, LOOKUP, Draft, DraftKind, Loader, Sequences


class DecodingDraft(Draft):
    """Drafts by decoding, beside lookup in the text.

    Args:
        target: what it drafts for.
        model: what decodes.
        corpus: tokens [n] to look up besides.
        given: what the user has given for it.
        window: of a text it holds at most so many tokens. None: as many as its context has room for.
        close: frees the model, where it was opened for this target. None: somebody else frees it.
        reopened_by: what opens the same draft in another process; None: what was given.

    Attributes:
        drafter: its name in the native table.
        name: of its model, in reports.

    Raises:
        ValueError: a model that keeps no KV cache.
    """

    drafter: ClassVar[str]
    name: ClassVar[str]

    def __init__(
        self,
        target: Model,
        model: Model,
        corpus: npt.NDArray[np.int32],
        *,
        given: Any,
        window: int | None = None,
        close: Callable[[], None] | None = None,
        reopened_by: Any = None,
    ) -> None:
        self.sequence: _core.Sequence = model.sequence  # refuses a model that cannot generate
        super().__init__(given, target.why_no_rollback or model.why_no_rollback)
        self.model = model
        self.models = {self.name: model}
        self.window = window or 0
        self._corpus = corpus
        self._close = close
        self._reopened_by = given if reopened_by is None else reopened_by

    @property
    def label(self) -> str:
        """The name of its file."""
        return os.path.basename(self.model.settings.path)

    @property
    def reopened_by(self) -> Any:
        """See the base class."""
        return self._reopened_by

    def kept(self) -> contextlib.AbstractContextManager[None]:
        """See the base class."""
        return self.model.kept()

    def parts(self, own: Sequences | None) -> dict[str, Any]:
        """What the native drafter is made of, by the names of the loop's arguments."""
        return {self.name: self.sequence if own is None else own[self.name], "draft_window": self.window}

    def loop(
        self, target: _core.Sequence, own: Sequences | None = None, scheduler: _core.Scheduler | None = None
    ) -> _core.Speculator:
        """See the base class."""
        drafters = [GRAMMAR, LOOKUP, self.drafter]
        return _core.Speculator(target, drafters, corpus=self._corpus, scheduler=scheduler, **self.parts(own))

    def looks_up(self, options: Options) -> bool:
        """See the base class. So many tokens as were asked for are drafted by what decodes alone."""
        return options.paced

    def notice_closing(self) -> None:
        """Look whether the draft's owner has closed it: its native context must not be touched then."""
        if not self.model.is_open:
            self.unusable = self.unusable or "the draft Llama is closed"

    def claim(self) -> None:
        """Learn what the cache holds, if the draft's owner has used it."""
        self.notice_closing()
        if self.unusable is None and (held := self.model.used_by_owner()) is not None:
            self.sequence.assume(held)

    def forget(self) -> None:
        """Empty its cache, as far as the target uses it."""
        self.notice_closing()
        if self.unusable is None:
            self.model.used_by_owner()
            self.sequence.assume(np.empty(0, dtype=np.int32))

    def close(self) -> None:
        """See the base class."""
        if self._close is not None:
            self._close()
            self._close = None


class DecodingKind(DraftKind):
    """A kind of draft that decodes.

    Attributes:
        drafter: its drafter's name in the native table.
    """

    drafter: ClassVar[str]

    @abc.abstractmethod
    def open(self, target: Model, loader: Loader) -> DecodingDraft:
        """See the base class."""


@contextlib.contextmanager
def freed_after_errors(free: Callable[[], None]) -> Iterator[None]:
    """A block that makes a draft of a model, which is freed where that fails."""
    try:
        yield
    except BaseException:
        free()
        raise
