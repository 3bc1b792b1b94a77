"""The base classes: a draft that works for a target, and a kind of draft that a user has asked for."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from specllama import _core
from specllama.engine.hidden import Hidden
from specllama.engine.model import Model, token_ids
from specllama.engine.options import Options

from .draft_options import DraftOptions

LOOKUP = "lookup"

Sequences = Mapping[str, _core.Sequence]


class Draft(abc.ABC):
    """A draft that works for one target.

    Attributes:
        given: the user's ``draft_model``.
        unusable: why the draft cannot be used; None if it can.
    """

    def __init__(self, given: Any, unusable: str | None) -> None:
        self.given = given
        self.unusable = unusable

    models: Mapping[str, Model] = MappingProxyType({})
    """The models that the draft decodes with, by their names: ``"head"``, ``"draft"``, ``"inner"``, in this order."""
    is_paced = True
    """Whether ``"auto"`` as ``num_draft_tokens`` limits the draft to as many tokens as pay. If not, all are drafted."""
    also_looks_up = False
    """Whether the draft also looks up the text under ``num_draft_tokens="auto"``."""

    @property
    def label(self) -> str:
        """The name in reports."""
        return str(self.given)

    @property
    def timed(self) -> Mapping[str, Model | None]:
        """The models that the native loop times besides the target, in its order. None: a head that is no model."""
        return self.models

    @property
    def reopened_by(self) -> Any:
        """The ``draft_model`` that opens an equal draft in another process."""
        return self.given

    def kept(self) -> contextlib.AbstractContextManager[None]:
        """A context manager that keeps the weights of `models` in memory, even if their owner closes the models.

        Raises:
            ClosedError: the models are closed already.
        """
        return contextlib.nullcontext()

    @abc.abstractmethod
    def drafters(self, sequences: Sequences | None = None) -> list[_core.Drafter]:
        """Make the native drafters for one text. If several drafts promise equally much, the first drafter's is taken.

        Args:
            sequences: the sequences to decode with, by the names in `models`; None for the models' own sequences.
        """

    def loop(
        self, target: _core.Sequence, sequences: Sequences | None = None, scheduler: _core.Scheduler | None = None
    ) -> _core.Speculator:
        """The native loop over the target and this draft.

        Args:
            target: the target's sequence.
            sequences: see `drafters`.
            scheduler: decodes for several texts at once; None if this text is decoded alone.
        """
        return _core.Speculator(target, self.drafters(sequences), scheduler)

    def memories(self) -> dict[str, tuple[Model, _core.Sequence]]:
        """The models that the draft decodes with, and the sequence in which each holds the text, by name."""
        return {name: (model, model.sequence) for name, model in self.models.items()}

    def looks_up(self, options: Options) -> bool:
        """Whether the draft, with these options, also searches the ``lookup_corpus`` that a request may bring."""
        return self.also_looks_up and options.paced

    def require_several(self) -> None:  # noqa: B027
        """Check that this draft can be used for several texts at once.

        Raises:
            ValueError: it can be used for one text at a time only.
        """

    # The following methods do nothing for a draft that has no context of its own.

    def notice_closing(self) -> None:  # noqa: B027
        """Notice if the draft's owner has closed it."""

    def claim(self) -> None:  # noqa: B027
        """Take over the draft's cache. If the draft's owner has used the cache, learn which tokens are in it."""

    def refresh(self) -> None:  # noqa: B027
        """Use what has taken the place of the draft's file. Called before each generation, from any thread."""

    def forget(self) -> None:  # noqa: B027
        """Empty the part of the draft's cache that belongs to this target's texts."""

    def close(self) -> None:  # noqa: B027
        """Free what was opened for this target."""


class DrawingDraft(Draft):
    """A draft with one native drafter that draws tokens from a distribution. It also looks up the text.

    Args:
        given: the user's ``draft_model``.
        unusable: why the draft cannot be used; None if it can.
        corpus: tokens [n] to look up besides the text.
    """

    also_looks_up = True

    def __init__(self, given: Any, unusable: str | None, corpus: npt.NDArray[np.int32]) -> None:
        super().__init__(given, unusable)
        self._corpus = corpus

    @abc.abstractmethod
    def drawer(self, sequences: Sequences | None) -> _core.Drafter:
        """Make the native drafter that draws tokens.

        Args:
            sequences: see `drafters`.
        """

    def drafters(self, sequences: Sequences | None = None) -> list[_core.Drafter]:
        """See the base class."""
        return [_core.Drafter.grammar(), _core.Drafter.lookup(self._corpus), self.drawer(sequences)]


class DraftOfMany(Draft):
    """A draft for one of several texts: another draft, which decodes with this text's sequences. It frees nothing."""

    def __init__(self, draft: Draft, sequences: Sequences) -> None:
        super().__init__(draft.given, draft.unusable)
        self._draft = draft
        self._sequences = sequences

    def memories(self) -> dict[str, tuple[Model, _core.Sequence]]:
        """See the base class."""
        return {name: (self._draft.models[name], sequence) for name, sequence in self._sequences.items()}

    def refresh(self) -> None:
        """See the base class."""
        self._draft.refresh()

    def drafters(self, sequences: Sequences | None = None) -> list[_core.Drafter]:
        """See the base class."""
        return [] if self.unusable is not None else self._draft.drafters(sequences or self._sequences or None)


class Loaded(NamedTuple):
    """A draft model that was loaded for one target."""

    model: Model
    given: Any
    """The user's view of the draft."""
    close: Callable[[], None]
    """Frees the model."""


class Loader(Protocol):
    """Loads files and tokenizes text.

    `Engine` and `Llama` open drafts in the same way, except that each has a loader of its own.
    """

    def load(self, path: str, target: Model, draft_kwargs: Mapping[str, Any]) -> Loaded:
        """Load a draft model with the target's settings, except for those in `draft_kwargs`."""

    def tokenize(self, text: str) -> Sequence[int]:
        """The tokens of a text in the target's vocabulary, without BOS."""


class DraftKind(abc.ABC):
    """A kind of draft that a user has asked for. Its weights are not loaded yet.

    Args:
        options: what the user says of the draft, reduced to the options that this kind takes.

    Attributes:
        name: the word by which users ask for this kind; None if they give a file or an object.
        takes: the names of the fields of `DraftOptions` that have a meaning for this kind.
        opened_with: the constructor arguments that the user gives for a draft model that is loaded from a file.
    """

    name: ClassVar[str | None] = None
    takes: ClassVar[frozenset[str]] = frozenset()
    opened_with: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, options: DraftOptions) -> None:
        self.options = options

    @classmethod
    def is_meant(cls, given: Any) -> bool:
        """Whether the user's ``draft_model`` means this kind of draft. If it is a path, the file must exist.

        Raises:
            ValueError: the file is of this kind, and cannot be used.
        """
        return isinstance(given, str) and given == cls.name

    def hidden_states(self, target: str) -> Hidden | None:
        """The hidden states that the draft reads of its target; None if it reads none.

        Args:
            target: the path of the target's file.

        Raises:
            ValueError: the target cannot show these states.
        """
        return None

    @property
    def num_branches(self) -> int:
        """How many sequences the target's context needs besides the text's own, for rows that guess (lookahead)."""
        return 0

    @abc.abstractmethod
    def open(self, target: Model, loader: Loader) -> Draft:
        """Open the draft for a target.

        Args:
            target: a model that was opened so that it shows the hidden states which `hidden_states` names.
            loader: loads files and tokenizes text.

        Raises:
            TypeError, ValueError: the draft cannot be used for this target. Its class says when.
        """

    def corpus(self, target: Model, loader: Loader) -> npt.NDArray[np.int32]:
        """The tokens [n] of ``lookup_corpus``, which are looked up besides the text.

        Raises:
            TypeError: ``lookup_corpus`` is neither a text nor a sequence of token ids.
            ValueError: a token id is outside the target's vocabulary.
        """
        given: Any = self.options.lookup_corpus
        if isinstance(given, str):
            given = loader.tokenize(given)
        elif given is None:
            given = []
        if not isinstance(given, (Sequence, np.ndarray)) or isinstance(given, (bytes, bytearray, memoryview)):
            raise TypeError(
                f"lookup_corpus must be a text or a sequence of token ids, not of type {type(given).__name__}: read a "
                "file's text first, decode bytes"
            )
        return token_ids(given, "lookup_corpus", target.n_vocab)


class DrawingKind(DraftKind):
    """A kind of draft with one native drafter that draws tokens.

    Attributes:
        role: ``"head"`` or ``"model"``. A head and a model may be used together.
    """

    role: ClassVar[Literal["head", "model"]]

    @abc.abstractmethod
    def open(self, target: Model, loader: Loader) -> DrawingDraft:
        """See the base class."""
