"""The places on this machine where GGUF files are: specllama's own folder, and those of other programs."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import hub
from .catalog import models_dir
from .gguf_values import parts_of

_OF_OLLAMA = "application/vnd.ollama.image.model"
_MOST_DEEP = 6  # levels of folders that are searched; LM Studio has two
_FIRST = "-00001-of-"


def model_files(beside: str) -> Iterator[tuple[str, str]]:
    """All files that may be a model or a head: the name of the place, and the path. A split model has its first part.

    Args:
        beside: the path of a model. The files in its folder come first.
    """
    seen = set()
    for where, path in _all_files(os.path.dirname(os.path.abspath(beside))):
        real = os.path.realpath(path)
        if real not in seen:
            seen.add(real)
            yield where, path


def size_of(path: str) -> int:
    """The size of a model in bytes, with all its parts; 0 if a part is missing."""
    try:
        return sum(os.path.getsize(part) for part in parts_of(path))
    except OSError:
        return 0


def _all_files(folder: str) -> Iterator[tuple[str, str]]:
    yield from (("beside the model", path) for path in _gguf_files(folder, 0))
    yield from (("specllama", path) for path in _gguf_files(str(models_dir()), 0))
    yield from (("the hub", str(path)) for _, path, _ in hub.all_on_disk())
    yield from (("llama.cpp", path) for path in _gguf_files(str(_llama_cpp_folder()), _MOST_DEEP))
    for home in _lm_studio_folders():
        yield from (("LM Studio", path) for path in _gguf_files(str(home), _MOST_DEEP))
    yield from (("ollama", path) for path in _ollama_files())


def _gguf_files(folder: str, depth: int) -> Iterator[str]:
    """The GGUF files in a folder, and in `depth` levels of folders below it, sorted by name."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        name = entry.name.lower()
        is_further_part = len(parts_of(entry.path)) > 1 and _FIRST not in name
        if name.endswith(".gguf") and not is_further_part:
            yield entry.path
        elif depth and entry.is_dir():
            yield from _gguf_files(entry.path, depth - 1)


def _llama_cpp_folder() -> Path:
    if os.environ.get("LLAMA_CACHE"):
        return Path(os.environ["LLAMA_CACHE"])
    if sys.platform == "darwin":
        return Path("~/Library/Caches/llama.cpp").expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", "~")).expanduser() / "llama.cpp"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "llama.cpp"


def _lm_studio_folders() -> Iterator[Path]:
    """LM Studio's folders of models. A file in the user's folder says where its own folder is, if it was moved.

    Its settings name the folder of the models.
    """
    homes = [Path("~/.lmstudio").expanduser(), Path("~/.cache/lm-studio").expanduser()]
    with contextlib.suppress(OSError, ValueError):
        moved = Path("~/.lmstudio-home-pointer").expanduser().read_text(encoding="utf-8").strip()
        if moved:
            homes.append(Path(moved))
    folders = [home / "models" for home in homes]
    for home in homes:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            folders.append(Path(json.loads((home / "settings.json").read_bytes())["downloadsFolder"]))
    yield from dict.fromkeys(folders)


def _ollama_files() -> Iterator[str]:
    """The models of ollama. Its files are named by their hashes, and its manifests say which of them are models."""
    given = os.environ.get("OLLAMA_MODELS")
    folders = (
        [Path(given)] if given else [Path("~/.ollama/models").expanduser(), Path("/usr/share/ollama/.ollama/models")]
    )
    for folder in folders:
        for manifest in sorted((folder / "manifests").glob("*/*/*/*")):
            try:
                layers: Any = json.loads(manifest.read_bytes())["layers"]
                blobs = [layer["digest"].replace(":", "-") for layer in layers if layer["mediaType"] == _OF_OLLAMA]
            except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
                continue  # a manifest that cannot be read is skipped
            for blob in blobs:
                path = folder / "blobs" / os.path.basename(blob)
                if path.is_file():
                    yield str(path)
