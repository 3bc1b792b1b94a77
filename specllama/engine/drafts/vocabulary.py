"""The list of tokens that a draft model chooses among: the tokens that its target has written most often.

A short list makes the draft faster: each logit costs the reading of a row of the output matrix, and a text uses a
small part of a large vocabulary.
"""

from __future__ import annotations

import contextlib
import logging
import operator
import os
import weakref
from collections import Counter
from pathlib import Path
from typing import Any, Literal, TypeGuard

import numpy as np

from specllama import _core
from specllama.backend.cache import keyed_path, read_json, write_json
from specllama.engine.model import Model

DraftVocabularySize = int | Literal["auto"] | None

_LOGGER = logging.getLogger("specllama")
_USUAL = 32_768  # the number of tokens in a list of the size "auto"
_LARGE = 65_536  # tokens: a vocabulary up to this size gets no list by "auto", which would save little
_GROUP = 16  # tokens whose logits are computed together; lists and counts are of such groups
_FORMAT = 1
_MOST_GROUPS = 3_000  # the most groups whose counts a file holds
_MOST_WRITTEN = 1_000_000  # the largest sum of all counts in a file: above it, all counts are halved


def checked_draft_vocabulary(value: Any) -> DraftVocabularySize:
    """Check a size of the list.

    Returns:
        A number of tokens, ``"auto"`` or None.

    Raises:
        ValueError: the value is none of these.
    """
    if value is None:
        return None
    if isinstance(value, str) and value == "auto":
        return "auto"
    with contextlib.suppress(TypeError):
        number = operator.index(value)
        if number >= _GROUP:  # this refuses bools, too
            return number
    raise ValueError(
        f"draft_vocabulary={value!r} must be 'auto', None (all tokens), or a number of tokens, at least {_GROUP}"
    )


class DraftVocabulary:
    """The list of tokens for one target and its draft.

    The list is fixed while the draft is open, so that a seed always gives the same text. (Under some rules the text
    depends on the draft.) The tokens that the target writes meanwhile are counted, for the list of the next process.
    Tokens of the current text can always be drafted, even if they are not in the list.

    Args:
        target: the model whose texts are counted.
        draft: the draft model, whose tokens are in the list.
        size: the number of tokens in the list, or ``"auto"``; None for no list.
        is_same: True if the two vocabularies are equal. Then all such drafts of this target share the counts.

    Attributes:
        tokens: the list; None if the draft chooses among all its tokens.
    """

    def __init__(self, target: Model, draft: Model, size: DraftVocabularySize, *, is_same: bool) -> None:
        self.tokens: _core.DraftTokens | None = None
        if size == "auto":
            size = _USUAL if draft.n_vocab > _LARGE else None
        if size is None or size >= draft.n_vocab:
            return
        key: dict[str, Any] = {"file": os.path.basename(target.settings.path), "n_vocab": target.n_vocab}
        if not is_same:
            key["draft"] = os.path.basename(draft.settings.path)
        try:
            path: Path | None = keyed_path("written", key)
        except RuntimeError:  # there is no home folder
            path = None
        written = Counter[int]() if path is None else _read(path, key)
        self.tokens = _core.DraftTokens(draft.sequence.decoder, _most_written(written, draft.n_vocab, size))
        if path is not None:  # the counts are written when the draft is freed, or when the process ends
            weakref.finalize(self, _keep, self.tokens, path, key, os.getpid())


def _most_written(written: Counter[int], n_vocab: int, size: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """The first token of each chosen group. The most written groups come first, then groups with low ids fill the list.

    Low ids are usually common tokens.
    """
    groups = sorted(range(-(-n_vocab // _GROUP)), key=lambda group: (-written[group], group))
    return np.array(groups[: size // _GROUP], dtype=np.int32) * _GROUP


def _read(path: Path, key: dict[str, Any]) -> Counter[int]:
    """How many tokens of each group the target has written; empty if there is no valid file."""
    try:
        found = read_json(path)
    except (OSError, ValueError, RecursionError):
        return Counter()
    if not isinstance(found, dict) or found.get("format") != _FORMAT or found.get("key") != key:
        return Counter()
    groups = found.get("groups")
    if not isinstance(groups, dict) or not all(_is_count(name, count) for name, count in groups.items()):
        return Counter()
    return Counter({int(name): count for name, count in groups.items()})


def _is_count(name: str, count: Any) -> TypeGuard[int]:
    return name.isascii() and name.isdigit() and len(name) <= 6 and type(count) is int and 0 < count <= _MOST_WRITTEN


def _keep(tokens: _core.DraftTokens, path: Path, key: dict[str, Any], process: int) -> None:
    """Add this process's counts to the counts in the file, which other processes may have changed meanwhile."""
    now = tokens.take_written()
    if not now or os.getpid() != process:  # a forked process has inherited its parent's counts
        return
    written = _read(path, key)
    written.update(now)
    while written.total() > _MOST_WRITTEN:
        written = Counter({group: count // 2 for group, count in written.items() if count > 1})
    most = written.most_common(_MOST_GROUPS)
    try:
        write_json(path, {"format": _FORMAT, "key": key, "groups": {str(group): count for group, count in most}})
    except (OSError, NameError) as error:  # NameError: the interpreter ends, and open() is gone already
        _LOGGER.debug("what %s writes cannot be kept: %s", key["file"], error)
