"""A head in its own file: a layer that reads hidden states of the target (EAGLE-3, Li et al. 2025; MTP)."""

from __future__ import annotations

import os
from typing import Any, ClassVar, cast

import llama_cpp

from specllama.engine.hidden import FileOfHead, Hidden, of_head, shown_to
from specllama.engine.model import Model
from specllama.engine.opening import Opening, open_model
from specllama.engine.same_vocabulary import check_vocabulary_of_file, require_same_vocabulary
from specllama.models.head_file import read_head
from specllama.models.state_head_file import StateHeadFile

from .decoding import DecodingDraft, freed_after_errors
from .draft import DrawingKind, Loader
from .draft_options import TEXT, DraftOptions

OF_A_HEAD = TEXT | {"draft_window"}
_OWN = frozenset({"n_ctx", "n_batch", "n_threads", "n_gpu_layers", "kernels"})
"""The settings in which a head may differ from its target."""


class HeadDraft(DecodingDraft):
    """A head whose layer runs once for each token that it drafts. Several MTP layers take turns."""

    drafter = "head"
    name = "head"


class HeadInFile(DrawingKind):
    """The kind of draft that is a head in its own file.

    Attributes:
        draft: the class of the draft.
    """

    takes = OF_A_HEAD | {"draft_kwargs"}
    drafter = HeadDraft.drafter
    draft: ClassVar[type[DecodingDraft]] = HeadDraft

    def __init__(self, options: DraftOptions) -> None:
        super().__init__(options)
        self._file = cast("FileOfHead", self.read(options.draft_model))
        self._own: dict[str, Any] = dict(options.draft_kwargs or {})
        if unknown := self._own.keys() - _OWN:
            raise ValueError(
                f"draft_kwargs of a head may have {', '.join(sorted(_OWN))}: leave {', '.join(sorted(unknown))} out"
            )

    @staticmethod
    def read(path: str) -> FileOfHead | None:
        """The description of a head in this file; None if the file is no such head."""
        return read_head(path)

    @classmethod
    def is_meant(cls, given: Any) -> bool:
        """See the base class."""
        return isinstance(given, str) and cls.read(given) is not None

    def shown(self, target: str) -> Hidden:
        """See the base class."""
        return shown_to(self._file)

    def settings(self, target: Model) -> dict[str, Any]:
        """The settings that the head is opened with: the target's, replaced by the user's where there are any."""
        of_target = target.settings
        return {
            "n_ctx": target.n_ctx_asked,
            "n_batch": of_target.n_batch,
            "n_threads": of_target.n_threads,
            "n_gpu_layers": of_target.model_params.n_gpu_layers,
            "kernels": of_target.kernels.choice,
            **self._own,
        }

    def open(self, target: Model, loader: Loader) -> DecodingDraft:
        """See the base class."""
        head, corpus = self._file, self.corpus(target, loader)
        require_fit(target, head, shown_to(head))
        check_vocabulary_of_file(require_same_vocabulary, target.vocab, head.path, as_head=True)
        settings = self.settings(target)
        model = open_model(head.path, Opening(**settings), name="draft", hidden=of_head(head, target.context))
        with freed_after_errors(model.close):
            given = head.path
            return self.draft(target, model, corpus, given=given, window=self.options.draft_window, close=model.close)


def require_fit(target: Model, head: FileOfHead | StateHeadFile, shown: Hidden) -> None:
    """Check that a head was made for this target, and that the target was opened with the states that it reads.

    Raises:
        ValueError: it does not fit.
    """
    target.sequence  # refuses a model that cannot generate  # noqa: B018
    head.require_fit(
        n_layer=int(llama_cpp.llama_model_n_layer(target.address)),
        n_embd=int(llama_cpp.llama_model_n_embd(target.address)),
        n_vocab=target.n_vocab,
    )
    if target.settings.hidden != shown:
        raise ValueError(
            f"the target was not opened for the head {os.path.basename(head.path)}, and does not show the "
            "states that the head reads: give the head as draft_model where you create the Llama"
        )
