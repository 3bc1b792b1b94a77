"""The decisions of ``draft_model="auto"``: which drafts are faster, in one small JSON file for each model.

The files are in the cache directory and may be deleted at any time. Other programs may have changed them, so their
content is checked.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from specllama.backend.cache import cache_dir, keyed_path, read_json, write_json
from specllama.backend.folders import files_in
from specllama.engine.costs import machine
from specllama.models.model_folders import model_files, size_of

from .draft import LOOKUP

_LOGGER = logging.getLogger("specllama.drafts")
_FOLDER = "drafts"  # in the cache directory
_FORMAT = 1
NOT_KNOWN = (OSError, ValueError, RuntimeError)
"""The errors of reading and writing a decision. RuntimeError: brackets nested too deeply, or no home folder."""


@dataclasses.dataclass(frozen=True)
class Paying:
    """A draft that is faster than plain decoding.

    Attributes:
        draft_model: the value to give as ``draft_model``.
        weights: the size of the draft's weights in bytes.
        cache: the bytes of the draft's KV cache of `ROOM` tokens.
        why: the reason to expect that the draft is faster.
    """

    draft_model: str
    weights: int
    cache: int
    why: str


@dataclasses.dataclass(frozen=True)
class Decision:
    """The decision about the drafts for a model.

    Attributes:
        seen: the digest that the function `seen` makes of all files that could draft.
        is_final: False if T(n) of the target was guessed, so that the decision is made again once T(n) is known.
        paying: the drafts that are faster than plain decoding, the best first.
        otherwise: the ``draft_model`` if `paying` is empty, or none of its drafts fits into memory: ``"lookup"``, or
            None for plain decoding.
        why: the reason for `otherwise` if `paying` is empty.
        weights: the size of the target's weights in bytes.
        cache: the bytes of the target's KV cache of `ROOM` tokens.
        n_ctx: the most tokens in a text that the target was trained with (`Survey.n_ctx`).
        measured: the results of ``specllama drafts --measure``, by ``draft_model``.
    """

    seen: str
    is_final: bool
    paying: tuple[Paying, ...]
    otherwise: str | None
    why: str
    weights: int
    cache: int
    n_ctx: int
    measured: Mapping[str, Measured]


@dataclasses.dataclass(frozen=True)
class Measured:
    """The measured speedup of a draft.

    Attributes:
        ratio: the speedup of whole calls over plain decoding.
        error: the standard error of `ratio`.
        identity: the `identity` of the draft's file.
    """

    ratio: float
    error: float
    identity: tuple[int, int]


def read(path: str) -> Decision | None:
    """The decision about a model; None if there is none, or its file is damaged."""
    try:
        key = _key(path)
        return _checked(read_json(keyed_path(_FOLDER, key)), key)
    except (*NOT_KNOWN, KeyError, TypeError, AttributeError, OverflowError) as error:
        _LOGGER.debug("nothing is remembered of what drafts for %s: %s", path, error)
        return None


def measured_gain(path: str, draft: str) -> tuple[float, float] | None:
    """The measured speedup of a model with a draft, and its standard error; None if this draft was not measured.

    Args:
        path: the model's file.
        draft: the draft's file.
    """
    decision = read(path)
    found = None if decision is None else decision.measured.get(draft)
    return None if found is None or found.identity != identity(draft) else (found.ratio, found.error)


def write(path: str, decision: Decision) -> None:
    """Replace the decision about a model. Other processes read either the old one or the new one, and no mixture.

    Raises:
        OSError, RuntimeError: the file cannot be written, or there is no home folder.
    """
    key = _key(path)
    write_json(keyed_path(_FOLDER, key), {"format": _FORMAT, "key": key, **dataclasses.asdict(decision)})


def forget(path: str | None = None) -> int:
    """Delete the decision about one model, or about all models.

    Args:
        path: the model's file; None for all models.

    Returns:
        The number of deleted decisions.

    Raises:
        OSError, RuntimeError: a file cannot be deleted, or there is no home folder.
    """
    count = 0
    for file in map(Path, files_in(cache_dir() / _FOLDER, ".json")):
        if path is None or _is_about(file, path):
            file.unlink(missing_ok=True)
            count += 1
    return count


def seen(path: str) -> str:
    """A digest of the names, sizes and times of all files that could draft for a model. No header is read."""
    digest = hashlib.sha256()
    for _, file in model_files(path):
        digest.update(json.dumps([file, *identity(file)]).encode())
    return digest.hexdigest()


def identity(file: str) -> tuple[int, int]:
    """The size and the modification time (ns) of a file; zeros if there is no such file."""
    try:
        found = os.stat(file)
    except (OSError, ValueError):
        return 0, 0
    return found.st_size, found.st_mtime_ns


def _key(path: str) -> dict[str, Any]:
    return {"file": os.path.abspath(path), "size": size_of(path), **machine()}


def _checked(found: Any, key: Mapping[str, Any]) -> Decision:
    """The decision that a file holds.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: the file is damaged, or is about another model.
    """
    if found["format"] != _FORMAT or found["key"] != key:
        raise ValueError("another format, or another key")
    given = {field.name: found[field.name] for field in dataclasses.fields(Decision)}
    given["paying"] = tuple(_of_type(Paying(**one)) for one in given["paying"])
    given["measured"] = {name: _measured(**one) for name, one in given["measured"].items()}
    decision = _of_type(Decision(**given))
    if decision.otherwise not in (LOOKUP, None):
        raise ValueError(f"otherwise is {decision.otherwise!r:.60}")
    return decision


_One = TypeVar("_One", Decision, Paying)


def _of_type(value: _One) -> _One:
    """Return the value if each field has its declared type, and no int is negative.

    Raises:
        ValueError: a field has another type or is negative.
    """
    for field in dataclasses.fields(value):
        found = getattr(value, field.name)
        if (field.type in ("int", "str", "bool") and type(found).__name__ != field.type) or (
            field.type == "int" and found < 0
        ):
            raise ValueError(f"{field.name} is {found!r:.60}")
    return value


def _measured(ratio: Any, error: Any, identity: Any) -> Measured:
    if not all(type(value) in (int, float) and math.isfinite(value) for value in (ratio, error)):
        raise ValueError(f"measured {ratio!r:.60} with an error of {error!r:.60}")
    size, time = identity
    return Measured(ratio, error, (size, time))


def _is_about(file: Path, path: str) -> bool:
    try:
        return bool(os.path.abspath(path) == read_json(file)["key"]["file"])
    except (*NOT_KNOWN, KeyError, TypeError):
        return False
