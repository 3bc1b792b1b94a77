"""What a user says of a draft."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specllama.engine.options import checked_index, checked_optional

from .vocabulary import DraftVocabularySize, checked_draft_vocabulary

LOOKAHEAD = "lookahead"
_WHOSE = {
    "draft_kwargs": "a draft_model given by its path, or 'lookahead'",
    "lookup_corpus": "a draft model or draft_model='lookup'",
    "draft_vocabulary": "a draft model",
    "draft_mask_token": "a parallel draft model",
    "draft_window": "a draft model or a head",
}
"""Of each option besides the draft itself: what it is for."""
TEXT = frozenset({"lookup_corpus"})
"""What every draft takes that looks up the text."""


@dataclasses.dataclass(frozen=True)
class DraftOptions:
    """All that a user may say of a draft. The names are those of the arguments of ``specllama.Llama``, see there.

    Attributes:
        draft_model: a path, a name, an object that drafts, or a list of several; None for plain decoding.
        draft_kwargs: how a draft that is given by its path is opened; of ``"lookahead"`` its sizes.
        lookup_corpus: a text, or token ids, to look up besides the text.
        draft_vocabulary: how many tokens a draft model chooses among.
        draft_mask_token: what a parallel draft model reads in place of a token that is not known yet.
        draft_window: of a text a draft model or a head holds at most so many tokens.

    Raises:
        TypeError: one of another type.
        ValueError: one that is out of range, or that is for a draft where there is none.
    """

    draft_model: Any = None
    draft_kwargs: Mapping[str, Any] | None = None
    lookup_corpus: str | Sequence[int] | None = None
    draft_vocabulary: DraftVocabularySize = "auto"
    draft_mask_token: int | None = None
    draft_window: int | None = None

    def __post_init__(self) -> None:
        """See the class."""
        own = self.draft_kwargs
        if own is not None and not (isinstance(own, dict) and all(isinstance(name, str) for name in own)):
            raise TypeError(
                f"draft_kwargs={own!r:.100} must be a dict of the draft's constructor arguments, such as "
                "{'n_gpu_layers': 0}"
            )
        object.__setattr__(self, "draft_vocabulary", checked_draft_vocabulary(self.draft_vocabulary))
        if self.draft_mask_token is not None:
            mask = checked_index("draft_mask_token", self.draft_mask_token, "a token id, or None")
            object.__setattr__(self, "draft_mask_token", mask)
        what = "an int, from 1 up, or None (all that the draft's context has room for)"
        object.__setattr__(self, "draft_window", checked_optional("draft_window", self.draft_window, 1, what))
        if self.draft_model is None:  # the others may be for a draft that is assigned later
            self.refuse(("draft_kwargs", "lookup_corpus"))

    @property
    def opened_with(self) -> dict[str, Any]:
        """Of ``draft_kwargs`` what its file is opened with: all but a draft's own draft. Nothing where it has none."""
        if isinstance(self.draft_model, str) and self.draft_model == LOOKAHEAD:
            return {}
        return {name: value for name, value in (self.draft_kwargs or {}).items() if name != "draft_model"}

    @property
    def inner(self) -> Any:
        """What drafts for the draft; None: nothing."""
        return (self.draft_kwargs or {}).get("draft_model")

    def refuse(self, names: Iterable[str]) -> None:
        """Refuse options that have no meaning for this draft.

        Raises:
            ValueError: one of them was given.
        """
        for name in names:
            if self._was_given(name):
                raise ValueError(f"{name} is for {_WHOSE[name]}: leave it out")

    def require_taken(self, taken: Iterable[str]) -> None:
        """Refuse all but those that the draft takes.

        Raises:
            ValueError: another one was given.
        """
        self.refuse(name for name in _WHOSE if name not in taken)

    def of(self, given: Any, taken: Iterable[str]) -> DraftOptions:
        """The options of one draft, with those alone that it takes."""
        return DraftOptions(given, **{name: getattr(self, name) for name in _WHOSE if name in taken})

    def _was_given(self, name: str) -> bool:
        value = getattr(self, name)
        if name in ("draft_kwargs", "lookup_corpus"):
            return value is not None and (not hasattr(value, "__len__") or len(value) > 0)
        return bool(value != DraftOptions.__dataclass_fields__[name].default)
