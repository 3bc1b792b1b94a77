"""The options that a user may set for a draft."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specllama.engine.options import checked_index, checked_optional

from .vocabulary import DraftVocabularySize, checked_draft_vocabulary

_WHOSE = {
    "draft_kwargs": "a draft_model given by its path, with a context of its own (-mdd: for -md PATH), or with sizes",
    "lookup_corpus": "a draft model or draft_model='lookup'",
    "draft_vocabulary": "a draft model",
    "draft_mask_token": "a parallel draft model",
    "draft_window": "a draft model, or a head with a context of its own",
}
"""For each option, the kinds of draft that take the option, in the words of error messages."""
TEXT = frozenset({"lookup_corpus"})
"""The options of every draft that looks up the text."""


@dataclasses.dataclass(frozen=True)
class DraftOptions:
    """The options that a user may set for a draft.

    The names are those of ``specllama.Llama``'s arguments, which that class explains in full.

    Attributes:
        draft_model: a path, a name, an object that drafts, or a list of several; None for plain decoding.
        draft_kwargs: constructor arguments of a draft that is given by its path, or the sizes of lookahead decoding.
        lookup_corpus: a text, or token ids, to look up besides the text.
        draft_vocabulary: how many tokens a draft model chooses among; None for all.
        draft_mask_token: the token that a parallel draft model reads in place of each token that is not known yet.
        draft_window: the most tokens of a text that a draft model or a head holds.

    Raises:
        TypeError: an option has the wrong type.
        ValueError: an option is out of range, or needs a draft where there is none.
    """

    draft_model: Any = None
    draft_kwargs: Mapping[str, Any] | None = None
    lookup_corpus: str | Sequence[int] | None = None
    draft_vocabulary: DraftVocabularySize = "auto"
    draft_mask_token: int | None = None
    draft_window: int | None = None

    def __post_init__(self) -> None:
        """Check the options."""
        given = self.draft_kwargs
        if given is not None and not (isinstance(given, dict) and all(isinstance(name, str) for name in given)):
            raise TypeError(
                f"draft_kwargs={given!r:.100} must be a dict of the draft's constructor arguments, such as "
                "{'n_gpu_layers': 0}"
            )
        object.__setattr__(self, "draft_vocabulary", checked_draft_vocabulary(self.draft_vocabulary))
        if self.draft_mask_token is not None:
            mask = checked_index("draft_mask_token", self.draft_mask_token, "a token id, or None")
            object.__setattr__(self, "draft_mask_token", mask)
        what = "an int, from 1 up, or None (all that the draft's context has room for)"
        object.__setattr__(self, "draft_window", checked_optional("draft_window", self.draft_window, 1, what))
        if self.draft_model is None:  # the other options may be for a draft that is assigned later
            self.refuse(("draft_kwargs", "lookup_corpus"))

    @property
    def opened_with(self) -> dict[str, Any]:
        """The ``draft_kwargs`` that a draft model is opened with: all but ``draft_model``, the draft's own draft."""
        return {name: value for name, value in (self.draft_kwargs or {}).items() if name != "draft_model"}

    @property
    def inner(self) -> Any:
        """The ``draft_model`` in ``draft_kwargs``: the draft's own draft. None if the draft has none."""
        return (self.draft_kwargs or {}).get("draft_model")

    def refuse(self, names: Iterable[str]) -> None:
        """Refuse options that have no meaning for this draft.

        Raises:
            ValueError: one of `names` was set.
        """
        for name in names:
            if self._was_given(name):
                raise ValueError(f"{name} is for {_WHOSE[name]}: leave it out")

    def require_taken(self, taken: Iterable[str]) -> None:
        """Refuse all options that the draft does not take.

        Raises:
            ValueError: an option that is not in `taken` was set.
        """
        self.refuse(name for name in _WHOSE if name not in taken)

    def of(self, given: Any, taken: Iterable[str]) -> DraftOptions:
        """A copy for the draft `given`, with only the options in `taken`."""
        return DraftOptions(given, **{name: getattr(self, name) for name in _WHOSE if name in taken})

    def _was_given(self, name: str) -> bool:
        value = getattr(self, name)
        if name in ("draft_kwargs", "lookup_corpus"):
            return value is not None and (not hasattr(value, "__len__") or len(value) > 0)
        return bool(value != DraftOptions.__dataclass_fields__[name].default)
