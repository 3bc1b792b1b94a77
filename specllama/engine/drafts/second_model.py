"""A smaller model as the draft: loaded from a path, or lent by its owner."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from typing import Any

import llama_cpp
import numpy as np

from specllama import _core
from specllama.backend.brief import brief
from specllama.engine.model import Model
from specllama.engine.other_tokenizer import Foreign
from specllama.engine.same_vocabulary import (
    Common,
    check_vocabulary_of_file,
    in_common,
    require_in_common,
)
from specllama.models import catalog
from specllama.models.gguf_values import read_whole_header
from specllama.models.head_kinds import MASK_TOKEN
from specllama.models.heads import is_head
from specllama.models.loading import require_gguf
from specllama.models.opening_checks import check_opening
from specllama.models.shared_tokens import have_same_tokens
from specllama.warn import warn

from .decoding import DecodingDraft, freed_after_errors
from .draft import LOOKUP, DrawingKind, Loaded, Loader, Sequences
from .draft_options import TEXT, DraftOptions
from .foreign import ForeignDraft
from .vocabulary import DraftVocabulary

_OF_A_MODEL = TEXT | {"draft_vocabulary", "draft_mask_token", "draft_window"}


class ModelDraft(DecodingDraft):
    """A smaller model: the draft of Leviathan et al. (2022) and Chen et al. (2023).

    Args:
        target: the model that this model drafts for.
        model: the draft model.
        options: the user's options.
        common: the tokens that both models have; None if their vocabularies are equal.
        more: the base class's other arguments.

    Attributes:
        map: translates between the draft's tokens and the target's; None if their vocabularies are equal.

    Raises:
        ValueError: the model keeps no KV cache, or cannot have this mask token or a draft of its own.
    """

    name = "draft"

    def __init__(self, target: Model, model: Model, options: DraftOptions, common: Common | None, **more: Any) -> None:
        super().__init__(target, model, window=options.draft_window, **more)
        self.map = None if common is None else common.map()
        if common is not None and common.num_common < common.num_tokens:
            warn(
                f"the draft has {common.num_common:,} of the target's {common.num_tokens:,} tokens ({common.share}): "
                "it drafts these, and never the others"
            )
        self._vocabulary = DraftVocabulary(target, model, options.draft_vocabulary, is_same=common is None)
        mask = _mask_of(options.draft_mask_token, model)
        _require_one(mask, options.inner)
        self._mask = _checked_mask(mask, self.sequence.decoder)
        self._looks_up = options.inner == LOOKUP
        if options.inner is not None and not _forgets(self.sequence.decoder):
            raise ValueError(
                f"draft_kwargs={{'draft_model': {options.inner!r}}} is for a draft with a KV cache: this one is "
                "recurrent, so leave it out"
            )

    def drawer(self, sequences: Sequences | None) -> _core.Drafter:
        """See the base class."""
        return _core.Drafter.model(
            self.sequence_of(sequences),
            window=self.window,
            tokens=self._vocabulary.tokens,
            mask=self._mask,
            map=self.map,
            inner=self.guessing(sequences),
        )

    def guessing(self, sequences: Sequences | None) -> _core.Drafter | None:
        """Make the native drafter that guesses the tokens which this draft will draw; None if there is none."""
        return _core.Drafter.lookup(self._corpus) if self._looks_up else None


class StagedDraft(ModelDraft):
    """A draft model that has a smaller model as its own draft (staged speculative decoding, Spector and Re 2023).

    Args:
        inner: the smaller model, as a draft of the same target.
        given: the arguments of `ModelDraft`.
    """

    def __init__(self, inner: ModelDraft, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.inner = inner
        self.models = {**self.models, "inner": inner.model}

    @property
    def label(self) -> str:
        """The names of both files."""
        return f"{super().label} with {self.inner.label}"

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """See the base class."""
        with super().kept(), self.inner.kept():
            yield

    def guessing(self, sequences: Sequences | None) -> _core.Drafter:
        """See the base class."""
        sequence = self.inner.sequence if sequences is None else sequences["inner"]
        # Both drafts use the same list of tokens, but only one of them counts the tokens that the target writes.
        tokens = self._vocabulary.tokens if self.map is None and self.inner.map is None else None
        apart = None if tokens is None else tokens.apart()
        return _core.Drafter.model(sequence, window=self.window, tokens=apart, map=self.inner.map)

    def forget(self) -> None:
        """See the base class."""
        super().forget()
        self.inner.forget()

    def close(self) -> None:
        """See the base class."""
        try:
            super().close()
        finally:  # also if Ctrl-C comes while the larger draft model is freed
            self.inner.close()


def draft_of(
    target: Model, model: Model, options: DraftOptions, inner: ModelDraft | None = None, **more: Any
) -> DecodingDraft:
    """Make a draft of a model. How the vocabularies of model and target differ decides the class of the draft.

    Raises:
        ValueError: the two models have hardly a token in common, or the class of the draft refuses the model.
    """
    common = in_common(target.vocab, model.vocab)
    if isinstance(common, Foreign):
        draft: DecodingDraft = ForeignDraft(target, model, options, common, **more)
    elif inner is not None:
        draft = StagedDraft(inner, target, model, options, common, **more)
    else:
        draft = ModelDraft(target, model, options, common, **more)
    _warn_if_larger(target, model)
    return draft


class FileModel(DrawingKind):
    """The kind of draft that is a model loaded for this target."""

    role = "model"
    takes = _OF_A_MODEL | {"draft_kwargs"}

    def __init__(self, options: DraftOptions) -> None:
        super().__init__(options)
        self.opened_with = options.opened_with
        self._inner = _inner_of(options)

    @classmethod
    def is_meant(cls, given: Any) -> bool:
        """See the base class. Any path counts as a model, because heads come before this kind in `KINDS`."""
        return isinstance(given, str)

    def open(self, target: Model, loader: Loader) -> DecodingDraft:
        """See the base class."""
        path = self.options.draft_model
        corpus = self.corpus(target, loader)
        inner = None if self._inner is None else self._open_inner(self._inner, target, loader)
        with freed_after_errors(lambda: None if inner is None else inner.close()):
            model, given, close = self._load(path, target, loader)
            with freed_after_errors(close):
                more: dict[str, Any] = {"corpus": corpus, "given": given, "close": close, "reopened_by": path}
                return draft_of(target, model, self.options, inner, **more)

    def _load(self, path: str, target: Model, loader: Loader) -> Loaded:
        draft_kwargs = dict(self.opened_with)
        check_opening(path, draft_kwargs)
        # Only the files' lists of tokens are compared. `draft_of` compares the roles of tokens, when the draft is open.
        if not have_same_tokens(target.settings.path, path):
            check_vocabulary_of_file(require_in_common, target.vocab, path, overrides=draft_kwargs.get("kv_overrides"))
        return loader.load(path, target, draft_kwargs)

    def _open_inner(self, path: str, target: Model, loader: Loader) -> ModelDraft:
        """Open the draft's own draft. It is opened as a draft for the target, because it reads the target's text.

        Raises:
            ValueError: the model has another tokenizer, or is recurrent, or `ModelDraft` refuses it.
        """
        model, given, close = self._load(path, target, loader)
        with freed_after_errors(close):
            common = in_common(target.vocab, model.vocab)
            if isinstance(common, Foreign):
                raise ValueError(
                    f"{path} has another tokenizer than the target: the draft of a draft must have the target's"
                )
            options = DraftOptions(path, draft_vocabulary=None, draft_window=self.options.draft_window)
            inner = ModelDraft(
                target, model, options, common, corpus=np.empty(0, dtype=np.int32), given=given, close=close
            )
            if not _forgets(inner.sequence.decoder):
                raise ValueError(f"{path} is recurrent: the draft of a draft must have a KV cache")
            return inner


class LentModel(DrawingKind):
    """The kind of draft that is an open model of the user's. Its owner frees it."""

    role = "model"
    takes = _OF_A_MODEL

    @classmethod
    def is_meant(cls, given: Any) -> bool:
        """See the base class."""
        return borrowed.dispatch(type(given)) is not borrowed.dispatch(object)

    def open(self, target: Model, loader: Loader) -> DecodingDraft:
        """See the base class."""
        given = self.options.draft_model
        model = borrowed(given)
        if model is target:
            raise ValueError("a Llama cannot be its own draft: load a smaller model of its family")
        return draft_of(target, model, self.options, corpus=self.corpus(target, loader), given=given)


@functools.singledispatch
def borrowed(given: Any) -> Model:
    """The model that an object lends as a draft. Each class of such objects registers its function here.

    Raises:
        TypeError: the object's class has registered no function.
    """
    raise TypeError(type(given))


def _mask_of(given: int | None, model: Model) -> int | None:
    """The mask token that the user gives, or else the one that the draft's file names; None if there is neither."""
    named = model.settings.metadata.get(MASK_TOKEN)
    return int(named) if given is None and named is not None else given


def _require_one(mask: int | None, inner: Any) -> None:
    """Refuse a draft of its own for a parallel draft model, which drafts several tokens in one decode.

    Raises:
        ValueError: the draft model has both a mask token and a draft of its own.
    """
    if mask is not None and inner is not None:
        raise ValueError(
            "a draft with a mask token says several tokens in one decode, and takes no draft of its own: leave out the "
            "draft_model in draft_kwargs, or draft_mask_token"
        )


def _checked_mask(mask: int | None, draft: _core.Decoder) -> int | None:
    """The mask token, after checks that the draft has this token and can remove masks from its cache.

    Raises:
        ValueError: a check fails.
    """
    if mask is None:
        return None
    if not 0 <= mask < draft.n_vocab:
        raise ValueError(
            f"draft_mask_token={brief(mask)} is out of range: the draft has the tokens 0 to {draft.n_vocab - 1}"
        )
    if not _forgets(draft):
        raise ValueError("draft_mask_token is for a draft with a KV cache: this one is recurrent, so leave it out")
    return mask


def _forgets(draft: _core.Decoder) -> bool:
    """Whether the draft's memory is a KV cache, whose last tokens can be removed, and no recurrent state."""
    return draft.rollback.startswith("seq_rm")


def _inner_of(options: DraftOptions) -> str | None:
    """The path of the draft's own draft (staged speculative decoding, Spector and Re 2023, arXiv 2308.04623).

    Returns:
        None if the draft has no draft of its own, or has ``"lookup"``, which is no file.

    Raises:
        ModelNotFoundError: the draft's own draft is neither ``"lookup"`` nor a file.
        ValueError: the file is no model, or a mask token was given, too.
    """
    given = options.inner
    _require_one(options.draft_mask_token, given)
    if given in (None, LOOKUP):
        return None
    try:
        path = catalog.resolve(os.fsdecode(given))
        require_gguf(path)
    except (TypeError, catalog.ModelNotFoundError) as error:
        raise catalog.ModelNotFoundError(
            f"draft_kwargs={{'draft_model': {given!r:.100}}}: a draft model's own draft can only be 'lookup', or a "
            f"smaller model, and {error}"
        ) from None
    if is_head(*read_whole_header(path)):
        raise ValueError(f"{path} is a head: a draft model's own draft can only be 'lookup', or a smaller model")
    return path


def _warn_if_larger(target: Model, draft: Model) -> None:
    of_target, of_draft = (llama_cpp.llama_model_n_params(model.address) for model in (target, draft))
    if of_draft > of_target:
        warn(
            f"the draft ({of_draft:,} parameters) is larger than the target ({of_target:,}): this is slower than no "
            "draft; exchange the two paths"
        )
