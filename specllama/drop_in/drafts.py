"""What a user's ``draft_model`` means: a model, a lookup in the text, a function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from specllama import _core
from specllama.backend.kernel_use import checked_kernels, loading
from specllama.engine.draft_vocabulary import DraftVocabularySize
from specllama.engine.drafts import (
    LOOKUP,
    MTP,
    TEXT_DRAFTERS,
    Draft,
    FunctionDraft,
    ModelDraft,
    TextDraft,
    named,
    open_head,
    open_mtp,
    together,
)
from specllama.engine.model import Model, token_ids
from specllama.engine.same_vocabulary import require_same_vocabulary_file
from specllama.models.head_file import HeadFile, MtpFile, read_head
from specllama.models.header_checks import require_sound
from specllama.models.loading import explained
from specllama.models.opening import check_opening, n_ctx_with_positions

from .base_class import BaseLlama
from .closed import is_open
from .context_params import ContextParams
from .lending import lent

# What a draft given by its path takes over from the target, unless draft_kwargs say otherwise.
_INHERITED = (
    *("n_gpu_layers", "split_mode", "main_gpu", "tensor_split", "offload_kqv", "op_offload", "flash_attn"),
    *("use_mmap", "use_mlock", "numa"),
)


_OF_A_HEAD = frozenset({"n_ctx", "n_batch", "n_threads", "n_gpu_layers", "kernels"})


class _LoadedDraft(ContextParams, BaseLlama):
    """A draft given by its path."""

    def __init__(self, model_path: str, **kwargs: Any) -> None:
        self.attend_as_kernels_do(kwargs)
        super().__init__(model_path, **kwargs)


def opened(
    target: BaseLlama,
    draft: Any,
    *,
    settings: Mapping[str, Any],
    draft_kwargs: dict[str, Any] | None = None,
    lookup_corpus: str | Sequence[int] | None = None,
    draft_vocabulary: DraftVocabularySize = "auto",
    draft_mask_token: int | None = None,
    draft_window: int | None = None,
) -> Draft:
    """The draft that a user's ``draft_model`` means.

    Args:
        target: what it drafts for.
        draft: what the user gave.
        settings: constructor arguments of the target, some of which a draft given by its path takes over.
        draft_kwargs: constructor arguments of such a draft, which win.
        lookup_corpus: a text, or token ids, to look up besides.
        draft_vocabulary: how many tokens a draft model chooses among.
        draft_mask_token: of a parallel draft model: stands for a token that is not known yet.
        draft_window: of a text a draft model holds at most so many tokens.

    Raises:
        TypeError: nothing that can draft, or no corpus.
        ValueError: another vocabulary (before the weights are loaded), a file that is no model, an argument that
            another kind of draft takes, or a corpus of tokens that the vocabulary does not have.
    """
    draft = named(draft, target.model_path)
    model = lent(target)
    if callable(draft) and not isinstance(draft, (BaseLlama, type)):  # a Llama is callable, too, and is not meant
        refuse(draft_kwargs, "draft_kwargs", "a draft_model given by its path")
        refuse(lookup_corpus, "lookup_corpus", f"a draft model or draft_model={LOOKUP!r}")
        return FunctionDraft(model, draft)
    corpus = _corpus_tokens(target, lookup_corpus)
    how = {"vocabulary": draft_vocabulary, "mask": draft_mask_token, "window": draft_window}
    if isinstance(draft, list):
        open_one = partial(_decoding, target, settings=settings, own=draft_kwargs, corpus=corpus, how=how)
        return together([partial(open_one, each) for each in draft], corpus)
    if isinstance(draft, str) and draft in TEXT_DRAFTERS:
        refuse(draft_kwargs, "draft_kwargs", "a draft_model given by its path")
        return TextDraft(model, draft, corpus)
    if isinstance(draft, str) and draft == MTP:
        refuse(draft_kwargs, "draft_kwargs", "a draft_model given by its path")
    return _decoding(target, draft, settings=settings, own=draft_kwargs, corpus=corpus, how=how)


def _refuse_mask(how: Mapping[str, Any]) -> None:
    if how["mask"] is not None:
        raise ValueError("draft_mask_token is for a parallel draft model: leave it out with a head")


def _decoding(
    target: BaseLlama,
    draft: Any,
    *,
    settings: Mapping[str, Any],
    own: dict[str, Any] | None,
    corpus: npt.NDArray[np.int32],
    how: Mapping[str, Any],
) -> ModelDraft:
    """A draft that decodes, as `named` has it."""
    if isinstance(draft, BaseLlama):
        return _given(target, draft, own, corpus, how)
    if isinstance(draft, str) and draft == MTP:
        _refuse_mask(how)
        return open_mtp(lent(target), corpus, how["window"])
    if isinstance(draft, str) and draft not in TEXT_DRAFTERS:
        return _loaded(target, draft, settings, own, corpus, how)
    raise TypeError(
        f"draft_model={draft!r:.200} must be a path, a model name, a llama_cpp.Llama, 'mtp', 'lookup', 'auto', "
        "a llama_cpp LlamaDraftModel, a list of a head and a model, or None"
    )


def _given(
    target: BaseLlama,
    draft: BaseLlama,
    draft_kwargs: dict[str, Any] | None,
    corpus: npt.NDArray[np.int32],
    how: Mapping[str, Any],
) -> ModelDraft:
    if draft_kwargs:
        raise ValueError("draft_kwargs are for a draft_model given by its path: this one is already loaded")
    if draft is target:
        raise ValueError("a Llama cannot be its own draft: load a smaller model of its family")
    if not is_open(draft):
        raise _core.ClosedError("the draft Llama is closed: open it again, or give its path as draft_model")
    require_sound(draft.model_path)
    return ModelDraft(lent(target), lent(draft, "draft"), corpus, given=draft, **how)


def _loaded(
    target: BaseLlama,
    path: str,
    settings: Mapping[str, Any],
    draft_kwargs: dict[str, Any] | None,
    corpus: npt.NDArray[np.int32],
    how: Mapping[str, Any],
) -> ModelDraft:
    own = dict(draft_kwargs or {})
    head = read_head(path)
    if head is not None:
        return _head(lent(target), head, settings, own, corpus, how)
    require_same_vocabulary_file(lent(target).vocab, path)
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
    arguments["n_ctx"] = n_ctx_with_positions(path, arguments["n_ctx"])
    with explained(path), loading(choice) as use:
        draft = _LoadedDraft(path, **arguments)
    model = lent(draft, "draft", use)
    return ModelDraft(lent(target), model, corpus, given=draft, close=draft.close, **how)


def _head(
    target: Model,
    head: HeadFile | MtpFile,
    settings: Mapping[str, Any],
    own: dict[str, Any],
    corpus: npt.NDArray[np.int32],
    how: Mapping[str, Any],
) -> ModelDraft:
    unknown = own.keys() - _OF_A_HEAD
    if unknown:
        raise ValueError(
            f"draft_kwargs of a head may have {', '.join(sorted(_OF_A_HEAD))}: leave {', '.join(sorted(unknown))} out"
        )
    _refuse_mask(how)
    of_target = target.settings
    arguments = {
        "n_ctx": target.n_ctx,
        "n_batch": of_target.n_batch,
        "n_threads": of_target.n_threads,
        "n_gpu_layers": settings.get("n_gpu_layers", 0),
        "kernels": settings.get("kernels"),
        **own,
    }
    return open_head(target, head, corpus, given=head.path, window=how["window"], **arguments)


def _corpus_tokens(target: BaseLlama, corpus: object) -> npt.NDArray[np.int32]:
    """A text to look up, as tokens of the target."""
    if isinstance(corpus, str):
        corpus = target.tokenize(corpus.encode(), add_bos=False)
    elif corpus is None:
        corpus = []
    if not isinstance(corpus, (Sequence, np.ndarray)) or isinstance(corpus, (bytes, bytearray, memoryview)):
        raise TypeError(
            f"lookup_corpus must be a text or a sequence of token ids, not of type {type(corpus).__name__}: read a "
            "file's text first, decode bytes"
        )
    return token_ids(corpus, "lookup_corpus", target.n_vocab())


def refuse(value: object, name: str, owner: str) -> None:
    """Raise a ValueError if an argument was given that only another draft takes."""
    if value is not None and (not isinstance(value, Sized) or len(value)):
        raise ValueError(f"{name} is for {owner}: leave it out")
