"""What drafts for a target: a model, a head, both, the text itself, a function."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from specllama import _core
from specllama.models import catalog
from specllama.models.head_file import HeadFile, MtpFile, read_head, require_mtp
from specllama.models.loading import captured_errors, one_at_a_time, quiet, require_gguf, why_no_context
from specllama.warn import warn

from .draft_vocabulary import DraftVocabulary, DraftVocabularySize
from .hidden import Hidden, of_head, of_mtp, shown_to, shown_to_mtp
from .model import Model
from .opening import open_model
from .same_vocabulary import require_same_vocabulary, require_same_vocabulary_file

LOOKUP = "lookup"
GRAMMAR = "grammar"
MTP = "mtp"
"""The name of the MTP layers in the target's own file."""
AUTO = "auto"
"""Those, where the file has them, else lookup."""
TEXT_DRAFTERS = tuple(drafter.name for drafter in _core.drafters() if drafter.needs == "text")
"""Those that need nothing but a name."""


def named(draft: Any, target: str) -> Any:
    """A user's draft, before anything is loaded: with names of files as their paths, and ``"auto"`` as what it means.

    Args:
        draft: what the user gave; several in a list.
        target: the path of the target.

    Raises:
        ModelNotFoundError: there is no such file.
        ValueError: it is no GGUF file.
    """
    if isinstance(draft, (list, tuple)):
        return [named(each, target) for each in draft]
    if not isinstance(draft, (str, os.PathLike)) or draft in (*TEXT_DRAFTERS, MTP):
        return draft
    if draft != AUTO:
        path = catalog.resolve(os.fsdecode(draft))
        require_gguf(path)
        return path
    try:
        require_mtp(target)
    except ValueError:
        return LOOKUP
    return MTP


def shown_for(draft: Any, target: str) -> Hidden | None:
    """What the target must show for a draft, as `named` has it.

    Raises:
        ValueError: a head that cannot be used.
    """
    for each in draft if isinstance(draft, list) else [draft]:
        if isinstance(each, str) and each == MTP:
            return shown_to_mtp(target)
        if isinstance(each, str) and each not in TEXT_DRAFTERS and (head := read_head(each)) is not None:
            return shown_to(head)
    return None


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

    @property
    def label(self) -> str:
        """What reports call it."""
        return str(self.given)

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

    # A draft without a context of its own has nothing to do in what follows.

    def notice_closing(self) -> None:  # noqa: B027
        """Look whether its owner has closed it."""

    def claim(self) -> None:  # noqa: B027
        """Learn what its cache holds, if its owner has used it."""

    def forget(self) -> None:  # noqa: B027
        """Empty its cache, as far as the target uses it."""

    def close(self) -> None:  # noqa: B027
        """Free what was opened for the target alone."""


class ModelDraft(Draft):
    """A smaller model: the draft of Leviathan et al. (2022) and Chen et al. (2023).

    Args:
        target: what it drafts for.
        model: the draft.
        corpus: tokens [n] to look up besides.
        given: what the user has given for it.
        vocabulary: how many tokens it chooses among.
        mask: the token that a parallel draft takes for those that are not known yet. None: it is no such draft.
        window: of a text it holds at most so many tokens. None: as many as its context has room for.
        close: frees the model, where it was opened for this target. None: somebody else frees it.

    Raises:
        ValueError: another vocabulary, a model that keeps no KV cache, or a mask that the draft cannot have.
    """

    def __init__(
        self,
        target: Model,
        model: Model,
        corpus: npt.NDArray[np.int32],
        *,
        given: Any,
        vocabulary: DraftVocabularySize = "auto",
        mask: int | None = None,
        window: int | None = None,
        close: Callable[[], None] | None = None,
    ) -> None:
        require_same_vocabulary(target.vocab, model.vocab)
        self.sequence: _core.Sequence = model.sequence  # refuses a model that cannot generate
        super().__init__(given, target.why_no_rollback or model.why_no_rollback)
        self.model = model
        self.is_head = model.settings.is_head
        self._name = "head" if self.is_head else "draft"
        self.models = {self._name: model}
        self.drafter = "head" if self.is_head else "model"
        self.is_owned = close is not None
        self._close = close
        self._corpus = corpus
        self._vocabulary = DraftVocabulary(target, self.sequence.decoder, None if self.is_head else vocabulary)
        self._window = window
        self._mask = _checked_mask(mask, self.sequence.decoder)
        if not self.is_head:
            _warn_if_larger(target, model)

    @property
    def label(self) -> str:
        """The name of its file."""
        return os.path.basename(self.model.settings.path)

    def kept(self) -> contextlib.AbstractContextManager[None]:
        """See the base class."""
        return self.model.kept()

    def loop(
        self, target: _core.Sequence, own: Sequences | None = None, scheduler: _core.Scheduler | None = None
    ) -> _core.Speculator:
        """See the base class."""
        return _core.Speculator(
            target, [GRAMMAR, LOOKUP, self.drafter], corpus=self._corpus, scheduler=scheduler, **self.parts(own)
        )

    def parts(self, own: Sequences | None) -> dict[str, Any]:
        """What `loop` makes the drafter of."""
        sequence = self.sequence if own is None else own[self._name]
        window = self._window or 0
        if self.is_head:
            return {"head": sequence, "draft_window": window}
        return {
            "draft": sequence,
            "draft_tokens": self._vocabulary.tokens,
            "draft_mask": self._mask,
            "draft_window": window,
        }

    def notice_closing(self) -> None:
        """Look whether the draft's owner has closed it: its native context must not be touched then."""
        if not self.model.is_open:
            self.unusable = self.unusable or "the draft Llama is closed"

    def claim(self) -> None:
        """Learn what the cache holds, if the draft's owner has used it."""
        self.notice_closing()
        if self.unusable is None and (held := self.model.used_by_owner()) is not None:
            self.sequence.assume(held)

    def forget(self) -> None:
        """Empty its cache, as far as the target uses it."""
        self.notice_closing()
        if self.unusable is None:
            self.model.used_by_owner()
            self.sequence.assume(np.empty(0, dtype=np.int32))

    def close(self) -> None:
        """See the base class."""
        if self._close is not None:
            self._close()
            self._close = None


def open_head(
    target: Model,
    head: HeadFile | MtpFile,
    corpus: npt.NDArray[np.int32],
    *,
    given: Any,
    window: int | None,
    **settings: Any,
) -> ModelDraft:
    """A head: one layer that reads hidden states of the target (EAGLE-3, Li et al. 2025).

    Args:
        target: what it drafts for, which was opened to show them.
        head: its file.
        corpus: tokens [n] to look up besides.
        given: what the user has given for it.
        window: of a text it holds at most so many tokens.
        settings: of `open_model`.

    Raises:
        ValueError: a head for another target, or a target that was opened without it.
    """
    target.sequence  # refuses a model that cannot generate  # noqa: B018
    head.require_fit(
        n_layer=int(llama_cpp.llama_model_n_layer(target.address)),
        n_embd=int(llama_cpp.llama_model_n_embd(target.address)),
        n_vocab=target.n_vocab,
    )
    if target.settings.hidden != shown_to(head):
        raise ValueError(
            f"the target was not opened for the head {os.path.basename(head.path)}, and does not show what that reads: "
            "give it as draft_model where you create the Llama"
        )
    require_same_vocabulary_file(target.vocab, head.path, as_head=True)
    model, close = open_model(head.path, name="draft", hidden=of_head(head, target.context), **settings)
    try:
        return ModelDraft(target, model, corpus, given=given, window=window, close=close)
    except BaseException:
        close()
        raise


def open_mtp(target: Model, corpus: npt.NDArray[np.int32], window: int | None) -> ModelDraft:
    """The MTP layer in the target's own file (DeepSeek-V3, arXiv 2412.19437, section 2.2), again and again.

    Args:
        target: what it drafts for, which was opened with it.
        corpus: tokens [n] to look up besides.
        window: of a text it holds at most so many tokens.

    Raises:
        ValueError: there is none, or the target was opened without it.
    """
    own = target.settings
    if own.hidden != shown_to_mtp(own.path):
        raise ValueError(
            "the target was opened without its MTP layers: give draft_model='mtp' where you create the Llama"
        )
    hidden = of_mtp(int(llama_cpp.llama_model_n_embd(target.address)))
    params = type(own.context_params).from_buffer_copy(own.context_params)
    params.n_rs_seq = 0
    taps = hidden.make_with(params)
    with one_at_a_time(), captured_errors() as errors, quiet(own.verbose):
        context = llama_cpp.llama_init_from_model(target.address, params)
    if not context:
        raise MemoryError(f"no context of the MTP layers: {why_no_context(errors, 'take a smaller n_ctx (-c)')}")
    try:
        hidden.begin(context)
    except BaseException:
        llama_cpp.llama_free(context)
        raise
    settings = dataclasses.replace(own, context_params=params, hidden=hidden)
    model = Model(target.address, int(context), settings, name="draft", taps=taps)

    def close() -> None:
        model.close(lambda: llama_cpp.llama_free(context), lambda: None)  # the weights are the target's

    try:
        return ModelDraft(target, model, corpus, given=MTP, window=window, close=close)
    except BaseException:
        close()
        raise


class Together(Draft):
    """A head and a model, which both draft for the target: each round has the one that promises most.

    Args:
        drafts: the two.
        corpus: tokens [n] to look up besides.

    Raises:
        ValueError: they are others.
    """

    def __init__(self, drafts: Sequence[Draft], corpus: npt.NDArray[np.int32]) -> None:
        both = sorted((draft for draft in drafts if isinstance(draft, ModelDraft)), key=lambda draft: not draft.is_head)
        if [draft.is_head for draft in both] != [True, False] or len(drafts) > len(both):
            raise ValueError(
                f"draft_model={[draft.given for draft in drafts]!r:.200} must be a head (or 'mtp') and a smaller "
                "model, where it is a list"
            )
        super().__init__([draft.given for draft in both], None)
        self.both = both
        self.models = {name: model for draft in both for name, model in draft.models.items()}
        self._corpus = corpus
        self.notice_closing()

    @property
    def label(self) -> str:
        """The names of both."""
        return " and ".join(draft.label for draft in self.both)

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """See the base class."""
        with self.both[0].kept(), self.both[1].kept():
            yield

    def loop(
        self, target: _core.Sequence, own: Sequences | None = None, scheduler: _core.Scheduler | None = None
    ) -> _core.Speculator:
        """See the base class."""
        parts = {name: part for draft in self.both for name, part in draft.parts(own).items()}
        drafters = [GRAMMAR, LOOKUP, *(draft.drafter for draft in self.both)]
        return _core.Speculator(target, drafters, corpus=self._corpus, scheduler=scheduler, **parts)

    def notice_closing(self) -> None:
        """See the base class."""
        for draft in self.both:
            draft.notice_closing()
            self.unusable = self.unusable or draft.unusable

    def claim(self) -> None:
        """See the base class."""
        for draft in self.both:
            draft.claim()
        self.notice_closing()

    def forget(self) -> None:
        """See the base class."""
        for draft in self.both:
            draft.forget()

    def close(self) -> None:
        """See the base class."""
        for draft in self.both:
            draft.close()


def together(openers: Sequence[Callable[[], Draft]], corpus: npt.NDArray[np.int32]) -> Together:
    """Opens both, or none.

    Raises:
        ValueError: see `Together`.
    """
    with contextlib.ExitStack() as stack:
        drafts = []
        for opener in openers:
            drafts.append(opener())
            stack.callback(drafts[-1].close)
        both = Together(drafts, corpus)
        stack.pop_all()
    return both


class TextDraft(Draft):
    """Drafts from prompt, output and a corpus, as ``"lookup"`` (Saxena 2023) does. It costs no decoding."""

    def __init__(self, target: Model, name: str, corpus: npt.NDArray[np.int32]) -> None:
        super().__init__(name, target.why_no_rollback)
        self._name = name
        self._corpus = corpus

    def loop(
        self, target: _core.Sequence, own: Sequences | None = None, scheduler: _core.Scheduler | None = None
    ) -> _core.Speculator:
        """See the base class."""
        return _core.Speculator(target, [GRAMMAR, self._name], corpus=self._corpus, scheduler=scheduler)


class FunctionDraft(Draft):
    """A function that drafts, such as a llama_cpp ``LlamaDraftModel``: token ids in, the ids that may follow out.

    What it drafts must depend on nothing but the tokens that it is given: their q has one token. A function that draws
    its tokens at random returns ``(ids, q)``, where q[i] has the probabilities of the whole vocabulary that token i was
    drawn with: an array [ids, n_vocab].
    """

    def __init__(self, target: Model, function: Callable[[npt.NDArray[np.intc]], Any]) -> None:
        super().__init__(function, target.why_no_rollback)
        self._function = function

    @property
    def label(self) -> str:
        """The name of its type."""
        return type(self._function).__name__

    def loop(
        self, target: _core.Sequence, own: Sequences | None = None, scheduler: _core.Scheduler | None = None
    ) -> _core.Speculator:
        """See the base class."""
        return _core.Speculator(target, ["function"], function=self._propose, scheduler=scheduler)

    def _propose(
        self, history: npt.NDArray[np.int32], num_draft_tokens: int
    ) -> tuple[list[int], _core.DraftProbabilities]:
        drafted = self._function(history.astype(np.intc))
        if not _has_q(drafted):
            tokens = [int(token) for token in np.asarray(drafted)[:num_draft_tokens]]
            return tokens, [_core.Distribution([token], [1.0]) for token in tokens]
        tokens, q = [int(token) for token in drafted[0]], np.asarray(drafted[1], dtype=np.float64)
        # A draft may stop anywhere, whatever was drawn.
        return tokens[:num_draft_tokens], q[:num_draft_tokens] if q.shape[:1] == (len(tokens),) else q


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


def _has_q(drafted: Any) -> bool:
    """Whether this is (ids, q); two ids in a tuple are not."""
    return isinstance(drafted, tuple) and len(drafted) == 2 and np.ndim(drafted[0]) == 1


def _checked_mask(mask: int | None, draft: _core.Decoder) -> int | None:
    """A token of the draft's, where its memory can forget masks."""
    if mask is None:
        return None
    if not 0 <= mask < draft.n_vocab:
        raise ValueError(f"draft_mask_token={mask} is out of range: the draft has the tokens 0 to {draft.n_vocab - 1}")
    if not draft.rollback.startswith("seq_rm"):
        raise ValueError("draft_mask_token is for a draft with a KV cache: this one is recurrent, so leave it out")
    return mask


def _warn_if_larger(target: Model, draft: Model) -> None:
    of_target, of_draft = (llama_cpp.llama_model_n_params(model.address) for model in (target, draft))
    if of_draft > of_target:
        warn(
            f"the draft ({of_draft:,} parameters) is larger than the target ({of_target:,}): this is slower than no "
            "draft; exchange the two paths"
        )
