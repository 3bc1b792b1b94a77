"""The folder of a training. It keeps all finished steps, so that the same command can resume."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import filelock

from specllama.backend.cache import cache_dir, read_json, write_json
from specllama.backend.folders import files_in, folders_in
from specllama.backend.replacing import PARTIAL


class AlreadyTrainingError(RuntimeError):
    """Another process is training a draft for this model."""


class Work:
    """The folder of one training.

    Args:
        target: the `Digest` of the target's weights.
        texts: everything that the text depends on. Trainings with equal `texts` share one file of texts.
        asked: all other options of the training. With other options it is another training, with its own folder.

    Attributes:
        folder: the folder of this training's own files.
        texts: the file with the texts that the target has written or the user has given.
        states: the folder of the target's states.
        used: the folder of copies of what was kept while the model was used.
        checkpoint: the file of the last checkpoint.
        best: the file of the best weights so far.
    """

    def __init__(self, target: str, texts: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
        trainings = cache_dir() / "training"
        self.folder = trainings / f"{target}-{_digest([texts, asked])}"
        self.texts = trainings / f"{target}-{_digest(texts)}.jsonl"
        self.states = self.folder / "states"
        self.used = self.folder / "used"
        self.checkpoint = self.folder / "checkpoint.pt"
        self.best = self.folder / "best.pt"
        self._lock = trainings / f"{target}.lock"

    @contextlib.contextmanager
    def locked(self, seconds: float = 0.0) -> Iterator[None]:
        """A context manager with a lock: no other process trains for this target. A killed process loses its lock.

        Args:
            seconds: how long to wait for another process.

        Raises:
            AlreadyTrainingError: another process has the lock.
            OSError: the cache directory cannot be written.
        """
        lock = filelock.FileLock(self._lock)
        with _advising():
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire(timeout=seconds)
            except filelock.Timeout:  # an OSError, too
                raise AlreadyTrainingError(
                    f"a draft for this model is being trained already, by another process (lock {self._lock}): wait "
                    "for it"
                ) from None
        try:
            for left in files_in(self.folder, PARTIAL, depth=1):  # files of a process that was killed
                os.unlink(left)
            yield
        finally:
            lock.release()

    def read(self, name: str) -> dict[str, Any] | None:
        """The content that was written under a name; None if there is none, or it is damaged."""
        try:
            found = read_json(self.folder / f"{name}.json")
        except (OSError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Write content under a name.

        Raises:
            OSError: the disk is full, or cannot be written.
        """
        with _advising():
            write_json(self.folder / f"{name}.json", content)

    def free(self) -> int:
        """The free bytes on the disk."""
        return shutil.disk_usage(self.folder).free

    def unfinished(self) -> list[Path]:
        """The folders of other trainings for this target, which were begun and never ended."""
        target = self.folder.name.partition("-")[0]
        found = [Path(one) for one in folders_in(self.folder.parent)]
        return [one for one in found if one.name.startswith(f"{target}-") and one != self.folder and _has_files(one)]

    def empty(self) -> None:
        """Delete all that is in the folder: a killed process may have left a part of what belongs together."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)

    def remove(self) -> None:
        """Delete the folder. The text stays: it is small, took long to write, and serves later trainings."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _has_files(folder: Path) -> bool:
    return next(files_in(folder, depth=1), None) is not None


@contextlib.contextmanager
def _advising() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(
            f"the training cannot be written: {error}. Set SPECLLAMA_CACHE to a folder that has room and can be "
            f"written, or mend {cache_dir()}"
        ) from error


def _digest(of: Any) -> str:
    return hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()[:16]
