"""A draft in the service of a target, and what makes one of what a user has given."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from specllama import _core
from specllama.engine.hidden import Hidden
from specllama.engine.model import Model, token_ids
from specllama.engine.options import Options

from .draft_options import DraftOptions

LOOKUP = "lookup"
GRAMMAR = "grammar"

Sequences = Mapping[str, _core.Sequence]


class Draft(abc.ABC):
    """A drafter in the service of one target.

    Attributes:
        given: what the user has given.
        unusable: why it cannot draft; None if it can.
    """

    def __init__(self, given: Any, unusable: str | None) -> None:
        self.given = given
        self.unusable = unusable

    models: Mapping[str, Model] = MappingProxyType({})
    """What it decodes with: ``"head"``, then ``"draft"``, a model."""
    is_paced = True
    """Whether ``num_draft_tokens="auto"`` takes only as many of its tokens as pay; else all that it has."""

    @property
    def label(self) -> str:
        """What reports call it."""
        return str(self.given)

    @property
    def reopened_by(self) -> Any:
        """What opens the same draft in another process."""
        return self.given

    def kept(self) -> contextlib.AbstractContextManager[None]:
        """Within the block the weights of its models stay, even if their owner closes them.

        Raises:
            ClosedError: they are closed.
        """
        return contextlib.nullcontext()

    @abc.abstractmethod
    def loop(
        self, target: _core.Sequence, own: Sequences | None = None, scheduler: _core.Scheduler | None = None
    ) -> _core.Speculator:
        """The native loop over the target and this draft.

        Args:
            target: its sequence.
            own: other sequences for those that the draft decodes with, by the names of its models.
            scheduler: what decodes for several texts, where this is one of them.
        """

    def looks_up(self, options: Options) -> bool:
        """Whether it also drafts from a text that a request gives for this, with these options."""
        return False

    def require_several(self) -> None:  # noqa: B027
        """Refuse to draft for several texts at once.

        Raises:
            ValueError: it drafts for one alone.
        """

    # A draft without a context of its own has nothing to do in what follows.

    def notice_closing(self) -> None:  # noqa: B027
        """Look whether its owner has closed it."""

    def claim(self) -> None:  # noqa: B027
        """Learn what its cache holds, if its owner has used it."""

    def forget(self) -> None:  # noqa: B027
        """Empty its cache, as far as the target uses it."""

    def close(self) -> None:  # noqa: B027
        """Free what was opened for the target alone."""


class DraftOfMany(Draft):
    """Another draft, over the sequences of one of several texts. Who has opened it frees it."""

    def __init__(self, draft: Draft, sequences: Sequences) -> None:
        super().__init__(draft.given, draft.unusable)
        self._draft = draft
        self._sequences = sequences

    def loop(
        self, target: _core.Sequence, own: Sequences | None = None, scheduler: _core.Scheduler | None = None
    ) -> _core.Speculator:
        """See the base class."""
        if self.unusable is not None:
            return _core.Speculator(target, scheduler=scheduler)
        return self._draft.loop(target, own or self._sequences or None, scheduler)

    def looks_up(self, options: Options) -> bool:
        """See the base class."""
        return self._draft.looks_up(options)


def raise_no_draft(given: Any) -> NoReturn:
    """Raises TypeError."""
    raise TypeError(
        f"draft_model={given!r:.200} must be a path, a model name, a llama_cpp.Llama, 'mtp', 'lookup', "
        "'lookahead', 'auto', a llama_cpp LlamaDraftModel, a list of a head and a model, or None"
    )


class Loaded(NamedTuple):
    """A draft model that was loaded for one target."""

    model: Model
    given: Any
    """What the user sees as the draft."""
    close: Callable[[], None]
    """Frees it."""


class Loader(Protocol):
    """How files are loaded and texts tokenized: in this alone ``Engine`` and ``Llama`` differ."""

    def load(self, path: str, target: Model, own: Mapping[str, Any]) -> Loaded:
        """Load a draft model, with the target's settings but for those that it has of its own."""

    def tokenize(self, text: str) -> Sequence[int]:
        """The target's tokens of a text, without BOS."""


class DraftKind(abc.ABC):
    """One kind of draft, of which the user has given one. No weights are loaded yet.

    Args:
        options: what the user says of it: nothing that this kind does not take.

    Attributes:
        takes: the names of those of `DraftOptions` that mean something for this kind.
    """

    takes: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, options: DraftOptions) -> None:
        self.options = options

    @classmethod
    @abc.abstractmethod
    def is_meant(cls, given: Any) -> bool:
        """Whether the user means this kind. Paths are those of files that exist.

        Raises:
            ValueError: a file of this kind that cannot be used.
        """

    def shown(self, target: str) -> Hidden | None:
        """What the target, the file at this path, must show for it; None: nothing.

        Raises:
            ValueError: the target's file cannot.
        """
        return None

    @property
    def num_branches(self) -> int:
        """How many branches of a text the target's context must have room for: what rows beside the text's see."""
        return 0

    @abc.abstractmethod
    def open(self, target: Model, loader: Loader) -> Draft:
        """Have it draft for a target that shows what it must.

        Raises:
            TypeError, ValueError: it cannot draft for this target, see the class of the draft.
        """

    def corpus(self, target: Model, loader: Loader) -> npt.NDArray[np.int32]:
        """The tokens [n] to look up besides the text.

        Raises:
            TypeError: neither a text nor tokens.
            ValueError: tokens that the vocabulary does not have.
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
