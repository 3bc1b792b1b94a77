"""The cache directory, and small JSON files in it. Several processes read and write the files, which may be damaged."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

import platformdirs

from .folders import beginning_of
from .replacing import replacing

_LARGEST_FILE = 65_536  # bytes that are read of a JSON file


def cache_dir() -> Path:
    """The folder of models and measured costs: SPECLLAMA_CACHE, else the user's cache directory on this platform."""
    return Path(os.environ.get("SPECLLAMA_CACHE") or platformdirs.user_cache_dir("specllama")).expanduser()


def keyed_path(folder: str, key: Mapping[str, Any]) -> Path:
    """The path of the file for a key, in a folder of the cache directory."""
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode("ascii")).hexdigest()
    return cache_dir() / folder / f"{digest[:32]}.json"


def read_json(path: Path, most_bytes: int = _LARGEST_FILE) -> Any:
    """Read a JSON file. Other programs may have changed the file, so the caller must check the result.

    Raises:
        OSError: there is no such file, or it cannot be read.
        ValueError, RecursionError: the file holds no JSON, or more than `most_bytes`, by default 65,536.
    """
    return json.loads(beginning_of(path, most_bytes))


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value of a JSON file is a number. A bool is no number."""
    return type(value) in (int, float)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file in place of the old one. A reader sees either the old file or the new one.

    Raises:
        OSError: the file cannot be written.
    """
    data = json.dumps(content, indent=1).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    # Bytes are written, because writing text would import a codec. A fork during an import would wait for its lock.
    with replacing(path) as temporary, open(temporary, "wb", opener=_for_user_alone) as file:
        file.write(data)


def _for_user_alone(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
