"""Drafts that llama.cpp decodes: a whole model or a head, with a context of its own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from specllama import _core
from specllama.engine.model import Model

from .draft import DrawingDraft, Sequences


class DecodingDraft(DrawingDraft):
    """A draft that llama.cpp decodes: a whole model or a head.

    Args:
        target: the model that it drafts for.
        model: the draft's model.
        corpus: tokens [n] to look up besides the text.
        given: the user's ``draft_model``.
        window: the most tokens of a text that the draft holds; None for as many as its context has room for.
        close: frees the model, and may be called again. None if the draft does not own the model.
        reopened_by: the ``draft_model`` that opens an equal draft in another process; None for `given`.

    Attributes:
        name: the model's name in reports.

    Raises:
        ValueError: the model keeps no KV cache.
    """

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
        super().__init__(given, target.why_no_rollback or model.why_no_rollback, corpus)
        self.model = model
        self.models = {self.name: model}
        self.window = window or 0
        self._close = close
        self._reopened_by = given if reopened_by is None else reopened_by

    @property
    def label(self) -> str:
        """The name of the model's file."""
        return os.path.basename(self.model.settings.path)

    @property
    def reopened_by(self) -> Any:
        """See the base class."""
        return self._reopened_by

    def kept(self) -> contextlib.AbstractContextManager[None]:
        """See the base class."""
        return self.model.kept()

    def sequence_of(self, sequences: Sequences | None) -> _core.Sequence:
        """The sequence to decode with: the one in `sequences`, or the model's own if `sequences` is None."""
        return self.sequence if sequences is None else sequences[self.name]

    def notice_closing(self) -> None:
        """Mark the draft as unusable if its owner has closed it, because its native context may be freed by now."""
        if not self.model.is_open:
            self.unusable = self.unusable or "the draft Llama is closed"

    def claim(self) -> None:
        """Take over the draft's cache. If the draft's owner has used the cache, learn which tokens are in it."""
        self.notice_closing()
        if self.unusable is None and (held := self.model.used_by_owner()) is not None:
            self.sequence.assume(held)

    def forget(self) -> None:
        """Empty the part of the draft's cache that belongs to this target's texts."""
        self.notice_closing()
        if self.unusable is None:
            self.model.used_by_owner()
            self.sequence.assume(np.empty(0, dtype=np.int32))

    def close(self) -> None:
        """See the base class."""
        if self._close is not None:
            self._close()


@contextlib.contextmanager
def freed_after_errors(free: Callable[[], None]) -> Iterator[None]:
    """Call `free` if the block fails. The block makes a draft of a model, and `free` frees the model."""
    try:
        yield
    except BaseException:
        free()
        raise
