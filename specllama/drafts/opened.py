"""What a user's ``draft_model`` means: a model, a lookup in the text, a function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from typing import Any

import numpy as np
import numpy.typing as npt

from specllama.backend.base_class import BaseLlama
from specllama.engine.prompt_tokens import token_ids

from .draft import LOOKUP, TEXT_DRAFTERS, Draft
from .function import FunctionDraft
from .model import ModelDraft
from .text import TextDraft


def opened(
    target: BaseLlama,
    draft: Any,
    *,
    settings: Mapping[str, Any],
    draft_kwargs: dict[str, Any] | None = None,
    lookup_corpus: str | Sequence[int] | None = None,
) -> Draft:
    """The draft that a user's ``draft_model`` means.

    Args:
        target: what it drafts for.
        draft: what the user gave.
        settings: constructor arguments of the target, some of which a draft given by its path takes over.
        draft_kwargs: constructor arguments of such a draft, which win.
        lookup_corpus: a text, or token ids, to look up besides.

    Raises:
        TypeError: nothing that can draft, or no corpus.
        ValueError: another vocabulary (before the weights are loaded), a file that is no model, an argument that
            another kind of draft takes, or a corpus of tokens that the vocabulary does not have.
    """
    if FunctionDraft.takes(draft):
        refuse(draft_kwargs, "draft_kwargs", "a draft_model given by its path")
        refuse(lookup_corpus, "lookup_corpus", f"a draft model or draft_model={LOOKUP!r}")
        return FunctionDraft(target, draft)
    corpus = _corpus_tokens(target, lookup_corpus)
    if isinstance(draft, str) and draft in TEXT_DRAFTERS:
        refuse(draft_kwargs, "draft_kwargs", "a draft_model given by its path")
        return TextDraft(target, draft, corpus)
    return ModelDraft.opened(target, draft, settings, draft_kwargs, corpus)


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
