"""A smaller model as the draft: loading, checking, sharing, freeing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from specllama import _core
from specllama.backend.base_class import BaseLlama
from specllama.backend.kernel_use import checked_kernels, loading, remember
from specllama.engine.closed import is_open
from specllama.engine.memory import memory_of, sequence_of, why_no_rollback
from specllama.models import catalog
from specllama.models.loading import explained
from specllama.models.opening import check_opening
from specllama.warn import warn

from .draft import GRAMMAR, LOOKUP, Draft
from .same_vocabulary import require_same_vocabulary, require_same_vocabulary_file
from .weights import weights_of

# What a draft given by its path takes over from the target, unless draft_kwargs say otherwise.
_INHERITED = (
    *("n_gpu_layers", "split_mode", "main_gpu", "tensor_split", "offload_kqv", "op_offload", "flash_attn"),
    *("use_mmap", "use_mlock", "numa"),
)


class ModelDraft(Draft):
    """A draft Llama in the service of a target.

    Attributes:
        llama: the draft.
        owned: whether the target loaded it, and frees it.
        weights: what both need, and who works on it.
    """

    def __init__(self, target: BaseLlama, llama: BaseLlama, owned: bool, corpus: npt.NDArray[np.int32]) -> None:
        super().__init__(llama)
        if llama is target:
            raise ValueError("a Llama cannot be its own draft: load a smaller model of its family")
        if not is_open(llama):
            raise _core.ClosedError("the draft Llama is closed: open it again, or give its path as draft_model")
        require_same_vocabulary(target._model, llama._model)
        self.sequence: _core.Sequence = sequence_of(llama, "draft")  # refuses a model that cannot generate
        self.llama = llama
        self.models = {"draft": llama}
        self.owned = owned
        self.weights = weights_of(llama)
        self._corpus = corpus
        self.unusable = why_no_rollback(target, "target") or why_no_rollback(llama, "draft")
        _warn_if_larger(target, llama)

    @classmethod
    def opened(
        cls,
        target: BaseLlama,
        draft: Any,
        settings: Mapping[str, Any],
        draft_kwargs: dict[str, Any] | None,
        corpus: npt.NDArray[np.int32],
    ) -> ModelDraft:
        """A draft from what the user gave: a path, a model name, or a Llama.

        Args:
            target: what it drafts for.
            draft: the same.
            settings: constructor arguments of the target, some of which a draft given by its path takes over.
            draft_kwargs: arguments of such a draft, which win.
            corpus: tokens [n] to look up besides.

        Raises:
            TypeError: something else.
            ValueError: another vocabulary (before the weights are loaded), or a file that is no model.
        """
        if isinstance(draft, BaseLlama):
            if draft_kwargs:
                raise ValueError("draft_kwargs are for a draft_model given by its path: this one is already loaded")
            return cls(target, draft, False, corpus)
        if not isinstance(draft, (str, os.PathLike)):
            raise TypeError(
                f"draft_model={draft!r} must be a path, a model name, a llama_cpp.Llama, 'lookup', "
                "a llama_cpp LlamaDraftModel or None"
            )
        path = catalog.resolve(draft)
        require_same_vocabulary_file(target._model, path)
        own = dict(draft_kwargs or {})
        choice = checked_kernels(own.pop("kernels", settings.get("kernels")))
        arguments = {
            # llama.cpp repacks 4-bit weights as it loads them. Mapped, the file would stay in memory beside the copy.
            "use_mmap": False,
            "verbose": target.verbose,
            **{name: settings[name] for name in _INHERITED if name in settings},
            "n_ctx": target.n_ctx(),
            "n_batch": target.n_batch,
            "n_threads": target.n_threads,
            "n_threads_batch": target.n_threads_batch,
            **own,
        }
        check_opening(path, arguments)
        with explained(path), loading(choice) as use:
            llama = BaseLlama(path, **arguments)
        remember(llama, use)
        return cls(target, llama, True, corpus)

    @property
    def label(self) -> str:
        """The name of its file."""
        return os.path.basename(self.llama.model_path)

    def kept(self) -> contextlib.AbstractContextManager[None]:
        """See the base class."""
        return self.weights.kept()

    def engine(
        self, target: _core.Sequence, own: _core.Sequence | None = None, scheduler: _core.Scheduler | None = None
    ) -> _core.Speculator:
        """See the base class."""
        drafters = [GRAMMAR, LOOKUP, "model"]
        own = own or self.sequence
        return _core.Speculator(target, drafters, draft=own, corpus=self._corpus, scheduler=scheduler)

    def pickled(self) -> Any:
        """See the base class."""
        return self.llama.model_path if self.owned else self.llama

    def notice_closing(self) -> None:
        """Look whether the draft's owner has closed it: its native context must not be touched then."""
        if not is_open(self.llama):
            self.unusable = self.unusable or "the draft Llama is closed"
            self.sequence.decoder.close()

    def claim(self) -> None:
        """Learn what the cache holds if the draft's owner has used it. While it is ours its ``n_tokens`` is 0."""
        self.notice_closing()
        if self.unusable is None and self.llama.n_tokens:
            self.sequence.assume(memory_of(self.llama).tokens(self.llama))
            self.llama.n_tokens = 0

    def forget(self) -> None:
        """Empty its cache, as far as the target uses it."""
        self.notice_closing()
        if self.unusable is None:
            self.llama.n_tokens = 0
            self.sequence.assume(np.empty(0, dtype=np.int32))

    def close(self) -> None:
        """Free the draft if the target loaded it."""
        if self.owned:
            self.llama.close()


def _warn_if_larger(target: BaseLlama, draft: BaseLlama) -> None:
    of_target, of_draft = target._model.n_params(), draft._model.n_params()
    if of_draft > of_target:
        warn(
            f"the draft ({of_draft:,} parameters) is larger than the target ({of_target:,}): this is slower than no "
            "draft; exchange the two paths"
        )
