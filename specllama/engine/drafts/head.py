"""Heads in files of their own: layers that read hidden states of the target."""

from __future__ import annotations

import abc
import os
from typing import Any, ClassVar, Generic, TypeVar, cast

import llama_cpp

from specllama import _core
from specllama.engine.hidden import Hidden, shown_layers
from specllama.engine.model import Model
from specllama.engine.opening import Opening, open_model
from specllama.engine.same_vocabulary import check_vocabulary_of_file, require_same_vocabulary
from specllama.models.head_file import HeadFile
from specllama.models.heads import read_head

from .decoding import DecodingDraft, freed_after_errors
from .draft import DrawingKind, Loader, Sequences
from .draft_options import TEXT, DraftOptions

OF_A_HEAD = TEXT | {"draft_window"}
_File = TypeVar("_File", bound=HeadFile)


class HeadDraft(DecodingDraft):
    """A head (EAGLE-3, MTP) whose layer runs once for each drafted token. Several MTP layers take turns."""

    name = "head"

    def drawer(self, sequences: Sequences | None) -> _core.Drafter:
        """See the base class."""
        return _core.Drafter.head(self.sequence_of(sequences), self.window)


class HeadInFile(DrawingKind, Generic[_File]):
    """The kind of draft that is a head in its own file.

    Attributes:
        form: the class that describes such a file.
        file: the description of this head's file.
    """

    role = "head"
    form: ClassVar[type[HeadFile]]

    def __init__(self, options: DraftOptions) -> None:
        super().__init__(options)
        self.file = cast("_File", read_head(options.draft_model))

    @classmethod
    def is_meant(cls, given: Any) -> bool:
        """See the base class."""
        return isinstance(given, str) and isinstance(read_head(given), cls.form)

    def hidden_states(self, target: str) -> Hidden:
        """See the base class."""
        return shown_layers(self.file.layers)

    def require_fit(self, target: Model) -> None:
        """Check that the head was made for this target, and that the target was opened to show what the head reads.

        Raises:
            ValueError: the head was made for another target, or the target does not show these states.
        """
        target.sequence  # refuses a model that cannot generate  # noqa: B018
        self.file.require_memory(target.settings.path)
        self.file.require_fit(
            n_layer=int(llama_cpp.llama_model_n_layer(target.address)),
            n_embd=int(llama_cpp.llama_model_n_embd(target.address)),
            n_vocab=target.n_vocab,
        )
        if target.settings.hidden != self.hidden_states(target.settings.path):
            raise ValueError(
                f"the target was not opened for the head {os.path.basename(self.file.path)}, and does not show the "
                "states that the head reads: give the head as draft_model where you create the Llama"
            )


class DecodingHead(HeadInFile[_File]):
    """A head that llama.cpp runs, in a context of its own.

    Attributes:
        draft: the class of the draft.
        may_differ: the settings in which the head may differ from its target.
    """

    takes = OF_A_HEAD | {"draft_kwargs"}
    may_differ = frozenset({"n_ctx", "n_batch", "n_threads", "n_gpu_layers", "kernels"})
    draft: ClassVar[type[DecodingDraft]] = HeadDraft

    def __init__(self, options: DraftOptions) -> None:
        super().__init__(options)
        self._draft_kwargs: dict[str, Any] = dict(options.draft_kwargs or {})
        if unknown := self._draft_kwargs.keys() - self.may_differ:
            raise ValueError(
                f"draft_kwargs of a head may have {', '.join(sorted(self.may_differ))}: leave "
                f"{', '.join(sorted(unknown))} out"
            )

    @abc.abstractmethod
    def hidden(self, target: Model) -> Hidden:
        """The hidden states that the head's own context shows, and the features that it reads of the target."""

    def settings(self, target: Model) -> dict[str, Any]:
        """The settings that the head is opened with: the target's, unless the user gives others in ``draft_kwargs``."""
        of_target = target.settings
        return {
            "n_ctx": target.n_ctx_asked,
            "n_batch": of_target.n_batch,
            "n_threads": of_target.n_threads,
            "n_gpu_layers": of_target.model_params.n_gpu_layers,
            "kernels": of_target.kernels.choice,
            **self._draft_kwargs,
        }

    def open(self, target: Model, loader: Loader) -> DecodingDraft:
        """See the base class."""
        path, corpus = self.file.path, self.corpus(target, loader)
        self.require_fit(target)
        check_vocabulary_of_file(require_same_vocabulary, target.vocab, path, as_head=True)
        settings = self.settings(target)
        hidden = self.hidden(target)
        shares = hidden.memory is not None
        more: dict[str, Any] = {"like": target.settings} if shares else {"has_spare": target.settings.has_spare}
        model = open_model(path, Opening(**settings), name="draft", hidden=hidden, **more)
        with freed_after_errors(model.close):
            return self.draft(target, model, corpus, given=path, window=self.options.draft_window, close=model.close)
