"""T(n) of models as it was measured before: one small JSON file each, in the cache directory.

Files are read with distrust, since anything can be in them, and may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from specllama.backend.json_files import read_json, write_json
from specllama.models.catalog import cache_dir

_LOGGER = logging.getLogger("specllama")
_FORMAT = 1
_SHORTEST, _LONGEST = 1e-9, 3600.0  # seconds of a batch
_MAX_AGE = 30 * 86_400.0  # seconds; measured anew then: a curve that was wrong must not be believed for ever
_STEEPEST = 2.0  # a batch of n tokens costs at most so many times n batches of one
_MOST_SIZES = 64
_ALL_UP_TO = 32  # these sizes are all kept, larger ones four for each doubling


def costs_dir() -> Path:
    """The folder of the curves; it may not exist yet."""
    return cache_dir() / "costs"


def size_class(n: int) -> int:
    """A number that those sizes share of which one is enough: small sizes have one each."""
    return n if n <= _ALL_UP_TO else _ALL_UP_TO + math.ceil(4 * math.log2(n / _ALL_UP_TO))


def thinned(costs: Mapping[int, float]) -> dict[int, float]:
    """What a file holds of a curve: the largest size of each class, without those that cannot be true."""
    possible = {n: costs[n] for n in sorted(costs) if _SHORTEST <= costs[n] <= _LONGEST}
    dear = _too_dear(possible)
    of_class = {size_class(n): n for n in possible if n not in dear}
    return {n: costs[n] for number, n in of_class.items() if number <= _MOST_SIZES}


def read(key: Mapping[str, Any]) -> dict[int, float]:
    """The seconds that batches of n tokens took, by n; empty if nothing is known, or nothing that can be believed.

    Args:
        key: what the curve depends on, see ``cost_key``.
    """
    try:
        return _checked(read_json(_path(key)), key)
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: too many brackets, or no home folder
        _LOGGER.debug("no costs of %s as the %s are known: %s", key.get("file"), key.get("role"), error)
        return {}


def write(key: Mapping[str, Any], costs: Mapping[int, float]) -> None:
    """Keep a curve in place of the one before. Whoever reads meanwhile sees either of them.

    Raises:
        OSError, RuntimeError: it cannot be written, or there is no home folder to write to.
    """
    seconds = {str(n): value for n, value in thinned(costs).items()}
    write_json(_path(key), {"format": _FORMAT, "key": key, "measured": time.time(), "seconds": seconds})


def _path(key: Mapping[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode("ascii")).hexdigest()
    return costs_dir() / f"{digest[:32]}.json"


def _checked(found: Any, key: Mapping[str, Any]) -> dict[int, float]:
    """The curve in what a file holds.

    Raises:
        ValueError: the file is not what `write` writes, is of something else, or holds what cannot be true.
    """
    if not isinstance(found, dict) or found.get("format") != _FORMAT or found.get("key") != key:
        raise ValueError("the file has another format, or another key")
    measured, seconds, now = found.get("measured"), found.get("seconds"), time.time()
    if not _is_number(measured) or not now - _MAX_AGE <= measured <= now:
        raise ValueError(f"measured at {measured!r}")
    if not isinstance(seconds, dict) or len(seconds) > _MOST_SIZES:
        raise ValueError("the file holds no curve")
    costs = {_checked_size(n): value for n, value in seconds.items()}
    for n, value in costs.items():
        if not _is_number(value) or not _SHORTEST <= value <= _LONGEST:
            raise ValueError(f"T({n}) is {value!r}")
    if dear := _too_dear(costs):
        raise ValueError(f"batches of {dear} tokens cost more than their tokens one by one")
    return costs


def _too_dear(costs: Mapping[int, float]) -> list[int]:
    """Sizes that were measured while something else held up the machine."""
    least = min(costs, default=0)
    return [n for n, seconds in costs.items() if seconds * least > _STEEPEST * n * costs[least]]


def _checked_size(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and text[0] != "0"):
        raise ValueError(f"{text!r} is no batch size")
    return int(text)


def _is_number(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float)  # a bool is none
