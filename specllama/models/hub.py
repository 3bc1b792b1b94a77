"""GGUF files of the hub, with the names of llama.cpp's option ``-hf``: ORG/NAME, ORG/NAME:TYPE or ORG/NAME:FILE.

The files are in the hub's own cache (``HF_HOME``), which all programs share that use the hub's library.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from specllama.backend.folders import NOT_THERE, files_in, folders_in

from .head_kinds import HEADS

_NAME = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(:(?P<wanted>[^:]+))?")
_PREFERRED = ("Q4_K_M", "Q4_0", "Q8_0")  # for names without a type: llama.cpp's default, then types that are fast here
_PART = re.compile(r"-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$", re.IGNORECASE)
_NO_MODEL = re.compile(rf"(^|/)({'|'.join(HEADS)})-|mmproj|imatrix", re.IGNORECASE)
"""Files beside models that are no models: heads, image encoders (mmproj), and importance matrices."""
_MOST_NAMED = 12
_MOST_DEEP = 6  # levels of folders in a repository


@dataclasses.dataclass(frozen=True)
class HubName:
    """The name of a model of the hub.

    Attributes:
        repo: the repository: ORG/NAME.
        wanted: a type, such as Q4_K_M, or the name of a file; empty for the usual type.
    """

    repo: str
    wanted: str = ""

    @classmethod
    def of(cls, text: str) -> HubName | None:
        """Read a name; None if the text is no such name, but a path perhaps."""
        found = _NAME.fullmatch(text)
        if found is None or found["repo"].lower().endswith(".gguf") or found["repo"].startswith("."):
            return None
        return cls(found["repo"], found["wanted"] or "")

    def __str__(self) -> str:
        """The name as users write it."""
        return f"{self.repo}:{self.wanted}" if self.wanted else self.repo

    def chosen(self, files: Sequence[str]) -> list[str]:
        """Choose the files that the name means.

        Args:
            files: all files of the repository.

        Returns:
            One file, or all parts of a split one in their order.

        Raises:
            ValueError: no file fits the name, or several do.
        """
        models = sorted(file for file in files if file.lower().endswith(".gguf"))
        first = {_PART.sub("", file): file for file in reversed(models)}  # for each model, its first part
        if self.wanted:
            meant = [name for name, file in first.items() if self.wanted in (file, os.path.basename(file))]
            meant = meant or [name for name in first if _has_type(name, self.wanted) and not _NO_MODEL.search(name)]
        else:
            whole = [name for name in first if not _NO_MODEL.search(name)]
            by_type = ([name for name in whole if _has_type(name, file_type)] for file_type in _PREFERRED)
            meant = whole if len(whole) == 1 else next(filter(None, by_type), [])
        if len(meant) != 1:
            self._raise_unclear(first, meant)
        return [file for file in models if _PART.sub("", file) == meant[0]]

    def _raise_unclear(self, first: Mapping[str, str], meant: list[str]) -> NoReturn:
        if not first:
            raise ValueError(
                f"{self.repo} has no GGUF file: look for a repository of the same model whose name ends in -GGUF"
            )
        fit = "several fit" if meant else "none fits"
        files = sorted(first[name] for name in meant or first if meant or not _NO_MODEL.search(name))
        named = ", ".join((files or sorted(first.values()))[:_MOST_NAMED])
        raise ValueError(f"{self} does not say which file: {fit}. Write {self.repo}: and one of {named}")


def on_disk(name: HubName) -> Path | None:
    """The file of a model, or the first of its parts; None if the hub's cache does not have all of it."""
    for folder in _snapshots(hub_cache() / f"models--{name.repo.replace('/', '--')}"):
        try:
            parts = name.chosen([*_files_of(folder)])
        except ValueError:
            continue
        if len(parts) == _num_parts(parts[0]):
            return folder / parts[0]
    return None


def all_on_disk() -> Iterator[tuple[str, Path, int]]:
    """All models in the hub's cache: the name, the file or the first of its parts, and the size in bytes."""
    for repository in map(Path, folders_in(hub_cache())):
        if not fnmatch.fnmatchcase(repository.name, "models--*--*"):
            continue
        org, _, repo = repository.name.removeprefix("models--").partition("--")
        seen = set()
        for folder in _snapshots(repository):
            files = _files_of(folder)
            for file, path in files.items():
                parts = [other for other in files if _PART.sub("", other) == _PART.sub("", file)]
                if file not in seen and parts[0] == file and len(parts) == _num_parts(file):
                    seen.add(file)
                    with contextlib.suppress(*NOT_THERE):  # a file was deleted meanwhile
                        yield f"{org}/{repo}:{file}", path, sum(files[part].stat().st_size for part in parts)


def _has_type(name: str, file_type: str) -> bool:
    return re.search(rf"(^|[-._/]){re.escape(file_type)}(\.gguf|[-./]|$)", name, re.IGNORECASE) is not None


def _num_parts(file: str) -> int:
    found = _PART.search(file)
    return 1 if found is None else int(found["count"])


def hub_cache() -> Path:
    """The folder of the hub's cache. It is found without the hub's library, whose import takes long."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(name):
            return Path(os.path.expanduser(os.path.expandvars(os.environ[name])))
    user = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = os.environ.get("HF_HOME", os.path.join(user, "huggingface"))
    return Path(os.path.expanduser(os.path.expandvars(home))) / "hub"


def _snapshots(repository: Path) -> list[Path]:
    """The folders of a repository's versions, the newest first."""
    return sorted(map(Path, folders_in(repository / "snapshots")), key=_changed, reverse=True)


def _files_of(version: Path) -> dict[str, Path]:
    """The GGUF files in the folder of a version, by their names in the repository."""
    return {
        Path(path).relative_to(version).as_posix(): Path(path) for path in files_in(version, ".gguf", depth=_MOST_DEEP)
    }


def _changed(folder: Path) -> float:
    with contextlib.suppress(*NOT_THERE):
        return folder.stat().st_mtime
    return 0.0
