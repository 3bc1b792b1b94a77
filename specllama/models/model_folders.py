"""The places on this machine where GGUF files are: specllama's own folder, and those of other programs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specllama.backend.cache import cache_dir
from specllama.backend.folders import NOT_THERE, beginning_of, files_in

from . import hub
from .catalog import models_dir
from .gguf_values import parts_of

_OF_OLLAMA = "application/vnd.ollama.image.model"
_MOST_DEEP = 6  # levels of folders that are searched; LM Studio has two
_FURTHER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)
_SETTINGS = 1 << 20  # the most bytes that are read of another program's file
_NO_SETTINGS = (*NOT_THERE, KeyError, TypeError, AttributeError, RecursionError)
"""The errors that reading another program's file may raise. Such a file may contain anything."""

LEARNED = "learned from use"
"""The place of heads that have learned from a model's answers (`specllama learn`)."""


def learned_dir() -> Path:
    """The folder that has, for each model, a folder of what a head can learn and of the head, named by its digest."""
    return cache_dir() / "learn"


def model_files(model: str) -> Iterator[tuple[str, str]]:
    """The place and the path of each file that may be a model or a head. Of a split model only the first part counts.

    Args:
        model: the path of a model. The files in its folder come first.
    """
    seen = set()
    for where, path in _all_files(os.path.dirname(os.path.abspath(model))):
        real = os.path.realpath(path)
        if real not in seen:
            seen.add(real)
            yield where, path


def size_of(path: str) -> int:
    """The size of a model in bytes, with all its parts; 0 if a part is missing."""
    try:
        return sum(os.path.getsize(part) for part in parts_of(path))
    except NOT_THERE:
        return 0


def _all_files(folder: str) -> Iterator[tuple[str, str]]:
    yield from (("beside the model", path) for path in _gguf_files(folder, 0))
    yield from (("specllama", path) for path in _gguf_files(models_dir(), 0))
    yield from ((LEARNED, path) for path in _gguf_files(learned_dir(), 1))
    yield from (("the hub", str(path)) for _, path, _ in hub.all_on_disk())
    yield from (("llama.cpp", path) for path in _gguf_files(_llama_cpp_folder(), _MOST_DEEP))
    for home in _lm_studio_folders():
        yield from (("LM Studio", path) for path in _gguf_files(home, _MOST_DEEP))
    yield from (("ollama", path) for path in _ollama_files())


def _gguf_files(folder: str | Path, depth: int) -> Iterator[str]:
    """The GGUF files in a folder, and in `depth` levels of folders below it; of a split model only the first part."""
    return (path for path in files_in(folder, ".gguf", depth=depth) if not _FURTHER_PART.search(path))


def _of_user(path: str) -> Path:
    """The path with ``~`` replaced by the user's home folder. If that is not known, ``~`` stays, and finds no file."""
    return Path(os.path.expanduser(path))


def _llama_cpp_folder() -> Path:
    if os.environ.get("LLAMA_CACHE"):
        return Path(os.environ["LLAMA_CACHE"])
    if sys.platform == "darwin":
        return _of_user("~/Library/Caches/llama.cpp")
    if sys.platform == "win32":
        return _of_user(os.environ.get("LOCALAPPDATA", "~")) / "llama.cpp"
    return _of_user(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "llama.cpp"


def _lm_studio_folders() -> Iterator[Path]:
    """LM Studio's folders of models: the usual ones, and those that LM Studio's settings name.

    The settings are in LM Studio's own folder. If it was moved, a file in the user's home folder has its new path.
    """
    homes = [_of_user("~/.lmstudio"), _of_user("~/.cache/lm-studio")]
    with contextlib.suppress(*NOT_THERE):
        moved = beginning_of(_of_user("~/.lmstudio-home-pointer"), _SETTINGS).decode("utf-8").strip()
        if moved:
            homes.append(Path(moved))
    folders = [home / "models" for home in homes]
    for home in homes:
        with contextlib.suppress(*_NO_SETTINGS):
            folders.append(Path(json.loads(beginning_of(home / "settings.json", _SETTINGS))["downloadsFolder"]))
    yield from dict.fromkeys(folders)


def _ollama_files() -> Iterator[str]:
    """The models of ollama, which names files by their hashes. Its manifests say which of the files are models."""
    given = os.environ.get("OLLAMA_MODELS")
    folders = [Path(given)] if given else [_of_user("~/.ollama/models"), Path("/usr/share/ollama/.ollama/models")]
    for folder in folders:
        for manifest in files_in(folder / "manifests", depth=3):
            try:
                layers: Any = json.loads(beginning_of(manifest, _SETTINGS))["layers"]
                blobs = [layer["digest"].replace(":", "-") for layer in layers if layer["mediaType"] == _OF_OLLAMA]
                paths = [str(folder / "blobs" / os.path.basename(blob)) for blob in blobs]
            except _NO_SETTINGS:
                continue  # a manifest that cannot be read is skipped
            yield from filter(os.path.isfile, paths)
