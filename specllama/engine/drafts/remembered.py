"""What was decided about the drafts of models: one small JSON file each.

Files are in the cache directory. They are read with distrust, since anything can be in them, and may be deleted at any
time.
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
from specllama.engine.costs import machine
from specllama.models.model_folders import model_files, size_of

from .draft import LOOKUP

_LOGGER = logging.getLogger("specllama.drafts")
_FOLDER = "drafts"  # of the cache directory
_FORMAT = 1
NOT_KNOWN = (OSError, ValueError, RuntimeError)
"""What is raised where nothing can be read or kept. RuntimeError: too many brackets, or no home folder."""


@dataclasses.dataclass(frozen=True)
class Paying:
    """A draft that pays.

    Attributes:
        draft_model: what to give as ``draft_model``.
        weights: bytes.
        cache: bytes of a KV cache of `ROOM` tokens.
        why: it pays.
    """

    draft_model: str
    weights: int
    cache: int
    why: str


@dataclasses.dataclass(frozen=True)
class Decision:
    """What is remembered of a model.

    Attributes:
        seen: a digest of the files that could draft, see `seen`.
        is_final: False: T(n) of the target was guessed.
        paying: what pays, the best first.
        otherwise: what to do where none of these is there, or fits into memory: ``"lookup"``, or None for plain
            decoding.
        why: the reason for this, where none pays.
        weights: of the target, bytes.
        cache: see `Paying`.
        n_ctx: see `Survey`.
        measured: what ``specllama drafts --measure`` found, by what was tried.
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
    """What a draft was found to give.

    Attributes:
        ratio: whole calls with it over plain decoding.
        error: the standard error of that.
        identity: of its file, see `identity`.
    """

    ratio: float
    error: float
    identity: tuple[int, int]


def read(path: str) -> Decision | None:
    """What was decided about a model; None: nothing, or nothing that can be believed."""
    try:
        key = _key(path)
        return _checked(read_json(keyed_path(_FOLDER, key)), key)
    except (*NOT_KNOWN, KeyError, TypeError, AttributeError) as error:
        _LOGGER.debug("nothing is remembered of what drafts for %s: %s", path, error)
        return None


def write(path: str, decision: Decision) -> None:
    """Keep a decision in place of the one before. Whoever reads meanwhile sees either of them.

    Raises:
        OSError, RuntimeError: it cannot be written, or there is no home folder to write to.
    """
    key = _key(path)
    write_json(keyed_path(_FOLDER, key), {"format": _FORMAT, "key": key, **dataclasses.asdict(decision)})


def forget(path: str | None = None) -> int:
    """Delete what was decided about a model, or about all. Returns how many decisions there were.

    Raises:
        OSError, RuntimeError: they cannot be deleted, or there is no home folder.
    """
    count = 0
    for file in sorted((cache_dir() / _FOLDER).glob("*.json")):
        if path is None or _is_about(file, path):
            file.unlink(missing_ok=True)
            count += 1
    return count


def seen(path: str) -> str:
    """A digest of the files that could draft for a model, by their names, sizes and times: no header is read."""
    digest = hashlib.sha256()
    for _, file in model_files(path):
        digest.update(json.dumps([file, *identity(file)]).encode())
    return digest.hexdigest()


def identity(file: str) -> tuple[int, int]:
    """The size and the time of a file; zeros for what is none."""
    try:
        found = os.stat(file)
    except (OSError, ValueError):
        return 0, 0
    return found.st_size, found.st_mtime_ns


def _key(path: str) -> dict[str, Any]:
    return {"file": os.path.abspath(path), "size": size_of(path), **machine()}


def _checked(found: Any, key: Mapping[str, Any]) -> Decision:
    """The decision in what a file holds.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: the file is not what `write` writes, or is of another model.
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
    """The same, if its texts are texts and its numbers are whole ones from 0 up."""
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
