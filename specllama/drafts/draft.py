"""What drafts for a target: a model, a lookup in the text, a function."""

from __future__ import annotations

import abc
from collections.abc import Sequence, Sized
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from specllama import _core
from specllama.engine.prompt_tokens import token_ids

if TYPE_CHECKING:
    from specllama.llama import Llama


LOOKUP = "lookup"
GRAMMAR = "grammar"
TEXT_DRAFTERS = tuple(drafter.name for drafter in _core.drafters() if drafter.needs == "text")
"""Those that may be given as ``draft_model`` by their name."""


class Draft(abc.ABC):
    """A drafter in the service of one target.

    Attributes:
        given: what the user sees as ``llm.draft_model``.
        unusable: why it cannot draft; None if it can.
    """

    def __init__(self, given: Any) -> None:
        self.given = given
        self.unusable: str | None = None

    @abc.abstractmethod
    def engine(self, target: _core.Sequence) -> _core.Speculator:
        """The native loop over the target and this draft."""

    @abc.abstractmethod
    def pickled(self) -> Any:
        """The ``draft_model`` of a copy of the target."""

    # A draft without a context of its own has nothing to do in what follows.

    def notice_closing(self) -> None:  # noqa: B027
        """Look whether its owner has closed it."""

    def claim(self) -> None:  # noqa: B027
        """Learn what its cache holds, if its owner has used it."""

    def forget(self) -> None:  # noqa: B027
        """Empty its cache, as far as the target uses it."""

    def close(self) -> None:  # noqa: B027
        """Free what the target has loaded."""


def opened(
    target: Llama,
    draft: Any,
    *,
    draft_kwargs: dict[str, Any] | None = None,
    lookup_corpus: str | Sequence[int] | None = None,
) -> Draft:
    """The draft that a user's ``draft_model`` means.

    Raises:
        TypeError: nothing that can draft, or no corpus.
        ValueError: another vocabulary (before the weights are loaded), a file that is no model, an argument that
            another kind of draft takes, or a corpus of tokens that the vocabulary does not have.
    """
    from .function import FunctionDraft
    from .model import ModelDraft
    from .text import TextDraft

    if FunctionDraft.takes(draft):
        refuse(draft_kwargs, "draft_kwargs", "a draft_model given by its path")
        refuse(lookup_corpus, "lookup_corpus", f"a draft model or draft_model={LOOKUP!r}")
        return FunctionDraft(target, draft)
    corpus = _corpus_tokens(target, lookup_corpus)
    if isinstance(draft, str) and draft in TEXT_DRAFTERS:
        refuse(draft_kwargs, "draft_kwargs", "a draft_model given by its path")
        return TextDraft(target, draft, corpus)
    return ModelDraft.opened(target, draft, draft_kwargs, corpus)


def _corpus_tokens(target: Llama, corpus: object) -> npt.NDArray[np.int32]:
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
