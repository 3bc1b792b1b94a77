"""Compares the vocabularies of a target and a draft: whether they are equal, and if not, which tokens are in both."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from specllama import _core
from specllama.backend.libllama import API
from specllama.backend.owned import Owned
from specllama.engine.model import piece_of
from specllama.models.loading import checked_loading, quiet
from specllama.models.opening_checks import override_array
from specllama.models.shared_tokens import LEAST_COMMON, NEARLY_EQUAL

from .other_tokenizer import Foreign, shown_share, translated

_ROLES = {"bos": llama_cpp.llama_vocab_bos, "eos": llama_cpp.llama_vocab_eos}
_OF_SPECIAL_TOKENS: tuple[Callable[[Any], int], ...] = (
    *(llama_cpp.llama_vocab_bos, llama_cpp.llama_vocab_eos, llama_cpp.llama_vocab_eot),
    *(llama_cpp.llama_vocab_fim_pre, llama_cpp.llama_vocab_fim_suf, llama_cpp.llama_vocab_fim_mid),
)
"""llama.cpp's functions that give the special token of a role, such as BOS, whatever the token's name."""


@dataclasses.dataclass(frozen=True)
class Common:
    """The common tokens of two vocabularies that are nearly equal.

    Attributes:
        target: the address of the target's vocabulary.
        draft: the address of the draft's vocabulary.
        same: for each of the target's tokens, the id of the same token in the draft; -1: there is none.
        drafted: for each of the draft's tokens, the id of the same token in the target; -1: there is none.
    """

    target: int
    draft: int
    same: npt.NDArray[np.int32]
    drafted: npt.NDArray[np.int32]

    @functools.cached_property
    def num_tokens(self) -> int:
        """How many tokens the target has, without padding."""
        return _num_of_text(self.target, self.same)

    @property
    def num_common(self) -> int:
        """How many of the target's tokens the draft has."""
        return int(np.count_nonzero(self.same >= 0))

    @property
    def share(self) -> str:
        """How many of the target's tokens the draft has, in percent; below 100 % if a single token is missing."""
        return shown_share(self.num_common, self.num_tokens)

    def map(self) -> _core.TokenMap:
        """The map between the target's tokens and the draft's.

        In place of a target's token that the draft lacks, the draft reads the last of its own tokens for the same text,
        or its EOS if it has no tokens for this text.
        """
        tokenizer, read = _core.Tokenizer(API, self.draft), self.same.copy()
        instead = max(0, int(llama_cpp.llama_vocab_eos(_at(self.draft))))
        for token in map(int, np.flatnonzero(read < 0)):
            found: list[int] = []
            if not _is_padding(self.target, token):
                with contextlib.suppress(ValueError):  # some vocabularies cannot write all texts
                    found = tokenizer.tokens(piece_of(self.target, token, True), False, True)
            read[token] = found[-1] if found else instead
        return _core.TokenMap(read, self.drafted)


def in_common(target: int, draft: int) -> Common | Foreign | None:
    """Compare two vocabularies by the texts and roles of their tokens, whatever the ids.

    Args:
        target: the address of the target's vocabulary.
        draft: the address of the draft's vocabulary.

    Returns:
        None if the draft has all tokens of the target with the same ids; Common if the vocabularies are nearly
        equal; Foreign if they belong to different tokenizers.

    Raises:
        ValueError: too few tokens are in both vocabularies.
    """
    found = _by_name(target, draft)
    return _translated(target, draft) if found is not None and not _is_near(found) else found


def require_in_common(target: int, draft: int) -> None:
    """Refuse most drafts that `in_common` refuses, in less time, before a draft's weights are loaded.

    If enough tokens have the same name in both vocabularies, nothing else is compared.

    Args:
        target: the address of the target's vocabulary.
        draft: the address of the draft's vocabulary.

    Raises:
        ValueError: too few tokens are in both vocabularies.
    """
    found = _by_name(target, draft)
    if found is None or found.num_common >= 2 * LEAST_COMMON * len(found.same):
        return
    if not _is_near(found):
        _translated(target, draft)


def _by_name(target: int, draft: int) -> Common | None:
    """The common tokens of two vocabularies, by names and roles; None if all tokens are common and have the same ids.

    Raises:
        ValueError: only one of the vocabularies has names of tokens.
    """
    if _is_nameless(target, draft):
        return None
    same = _core.common_tokens(API, target, draft)
    if np.array_equal(same, np.arange(len(same))):
        return None
    drafted = np.full(int(llama_cpp.llama_vocab_n_tokens(_at(draft))), -1, np.int32)
    drafted[same[same >= 0]] = np.flatnonzero(same >= 0)
    for role in _OF_SPECIAL_TOKENS:
        ours, theirs = int(role(_at(target))), int(role(_at(draft)))
        if ours >= 0 and theirs >= 0 and same[ours] < 0 and drafted[theirs] < 0:
            same[ours], drafted[theirs] = theirs, ours
    return Common(target, draft, same, drafted)


def _is_near(common: Common) -> bool:
    """Whether two vocabularies are nearly equal, so that they belong to one tokenizer."""
    shorter = min(len(common.same), len(common.drafted))
    most = max(common.num_tokens, _num_of_text(common.draft, common.drafted))
    is_beginning = np.array_equal(common.same[:shorter], np.arange(shorter))
    return is_beginning or common.num_common >= NEARLY_EQUAL * most


def _num_of_text(vocab: int, others: npt.NDArray[np.int32]) -> int:
    """How many tokens a vocabulary has, without padding. ``others`` has, for each token, its id elsewhere, or -1."""
    return len(others) - sum(_is_padding(vocab, int(token)) for token in np.flatnonzero(others < 0))


def _translated(target: int, draft: int) -> Foreign:
    roles = [(int(role(_at(target))), int(role(_at(draft)))) for role in _OF_SPECIAL_TOKENS]
    return translated(target, draft, roles)


def require_same_vocabulary(target: int, draft: int) -> None:
    """Check that a head's vocabulary is the target's: the texts of tokens, and BOS and EOS.

    If one vocabulary is longer, its further tokens are padding, and are not compared.

    Args:
        target: the address of the target's vocabulary.
        draft: the address of the head's vocabulary.

    Raises:
        ValueError: the vocabularies differ; the message names the first token that differs.
    """
    if _is_nameless(target, draft):
        return
    difference = _core.first_vocabulary_difference(API, target, draft)
    if difference is not None:
        of_target, of_draft = _show(difference.target_text), _show(difference.draft_text)
        raise _mismatch(f"token {difference.token} is {of_target} in the target and {of_draft} in the draft")
    for name, role in _ROLES.items():
        first, second = int(role(_at(target))), int(role(_at(draft)))
        if first != second:
            raise _mismatch(f"{name.upper()} is token {first} in the target and {second} in the draft")


def check_vocabulary_of_file(
    check: Callable[[int, int], Any],
    target: int,
    path: str,
    *,
    as_head: bool = False,
    overrides: Mapping[str, Any] | None = None,
) -> None:
    """Check a draft's file before its weights are loaded.

    Args:
        check: `require_in_common` or `require_same_vocabulary`.
        target: the address of the target's vocabulary.
        path: the draft's file.
        as_head: whether the file is a head.
        overrides: the ``kv_overrides`` with which the file will be loaded.

    Raises:
        ValueError: the check fails, or the file is no model.
    """
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    array = override_array(overrides or {})
    params.kv_overrides = array
    with checked_loading(path, as_head=as_head, overrides=overrides):
        with quiet():
            load = llama_cpp.llama_model_load_from_file
            model = Owned(llama_cpp.llama_model_free, load, path.encode("utf-8"), params)
        if not model.address:
            raise ValueError(f"Failed to load model from file: {path}")
        with contextlib.closing(model):
            check(target, int(llama_cpp.llama_model_get_vocab(model.address) or 0))


def _is_nameless(target: int, draft: int) -> bool:
    """Whether both vocabularies lack texts of tokens. llama.cpp would abort the process if it were asked for one.

    Raises:
        ValueError: only one of the vocabularies has texts.
    """
    nameless = [llama_cpp.llama_vocab_type(_at(one)) == llama_cpp.LLAMA_VOCAB_TYPE_NONE for one in (target, draft)]
    if any(nameless) and not all(nameless):
        raise _mismatch(f"the file of the {'target' if nameless[0] else 'draft'} has no tokenizer")
    return all(nameless)


def _is_padding(vocab: int, token: int) -> bool:
    return bool(llama_cpp.llama_vocab_get_attr(_at(vocab), token) & llama_cpp.LLAMA_TOKEN_ATTR_UNUSED)


def _at(vocab: int) -> Any:
    return vocab


def _show(text: bytes) -> str:
    return repr(text.decode("utf-8", errors="replace"))


def _mismatch(what: str) -> ValueError:
    return ValueError(
        f"the draft has another vocabulary than the target: {what}. "
        "Use a smaller model of the target's own family as draft_model, or draft_model=None"
    )
