"""Which tokens a draft model chooses among: the ones that its target writes, as far as that is known.

Computing a logit costs as much as reading a row of the output matrix, and of a large vocabulary a text uses little.
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
_USUAL = 32_768  # tokens
_LARGE = 65_536  # tokens of a vocabulary: for one that is smaller a list saves little
_GROUP = 16  # tokens that are computed together
_FORMAT = 1
_MOST_GROUPS = 3_000  # in a file
_MOST_WRITTEN = 1_000_000  # tokens: then older ones count half


def checked_draft_vocabulary(value: Any) -> DraftVocabularySize:
    """A size, ``"auto"`` or None.

    Raises:
        ValueError: none of these.
    """
    if value is None:
        return None
    if isinstance(value, str) and value == "auto":
        return "auto"
    with contextlib.suppress(TypeError):
        number = operator.index(value)
        if number >= _GROUP:  # no bool is
            return number
    raise ValueError(
        f"draft_vocabulary={value!r} must be 'auto', None (all tokens), or a number of tokens, at least {_GROUP}"
    )


class DraftVocabulary:
    """The list of one target and its draft. It learns from what the target writes, for the next process.

    The list stays as it is: a seed repeats a text, also under rules for which that depends on the draft. Each text has
    its own tokens besides.

    Args:
        target: whose texts are counted.
        draft: the draft. The list is of its tokens.
        size: how many tokens there are to choose among.
        is_same: the two have one vocabulary, so that what is known of the target is of use for any such draft.

    Attributes:
        tokens: the list, or None where all tokens are there to choose.
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
        if path is not None:  # when the draft is freed, or the process ends
            weakref.finalize(self, _keep, self.tokens, path, key, os.getpid())


def _most_written(written: Counter[int], n_vocab: int, size: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """A token of each group: those that were written most, then the first ones, as the usual tokens come first."""
    groups = sorted(range(-(-n_vocab // _GROUP)), key=lambda group: (-written[group], group))
    return np.array(groups[: size // _GROUP], dtype=np.int32) * _GROUP


def _read(path: Path, key: dict[str, Any]) -> Counter[int]:
    """How many tokens of which group the target has written; empty if nothing is known that can be believed."""
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
    """Add what has been written since the list was made to what the file has by now."""
    now = tokens.take_written()
    if not now or os.getpid() != process:  # a fork has the counts of its parent
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
