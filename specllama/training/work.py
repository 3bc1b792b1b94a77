"""The folder of a training: what is done is there, so that the same command goes on where it was."""

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

_PARTIAL = ".partial"


class AlreadyTrainingError(RuntimeError):
    """Somebody else trains a draft for this model."""


class Work:
    """The folder of one training.

    Args:
        target: a short name for the target's weights.
        texts: what the text depends on. Trainings that agree in it share their text, which stays for later ones.
        asked: what else was asked for. Another wish is another training.

    Attributes:
        folder: where everything else is.
        texts: what the target has written, and the user has given.
        states: the folder of its states.
        checkpoint: of the training.
        best: the best weights so far.
    """

    def __init__(self, target: str, texts: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
        trainings = cache_dir() / "training"
        self.folder = trainings / f"{target}-{_digest([texts, asked])}"
        self.texts = trainings / f"{target}-{_digest(texts)}.jsonl"
        self.states = self.folder / "states"
        self.checkpoint = self.folder / "checkpoint.pt"
        self.best = self.folder / "best.pt"
        self._lock = trainings / f"{target}.lock"

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Within the block nobody else trains for this target. A lock of a process that was killed is gone with it.

        Raises:
            AlreadyTrainingError: somebody does.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(self._lock)
        try:
            lock.acquire(blocking=False)
        except filelock.Timeout:
            raise AlreadyTrainingError(
                f"a draft for this model is being trained already, by another process (lock {self._lock}): wait for it"
            ) from None
        try:
            for left in self.folder.rglob(f".*{_PARTIAL}"):  # by a process that was killed
                left.unlink()
            yield
        finally:
            lock.release()

    def read(self, name: str) -> dict[str, Any] | None:
        """What was written under a name; None if nothing whole is there."""
        try:
            found = read_json(self.folder / f"{name}.json")
        except (OSError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Keep it.

        Raises:
            OSError: the disk is full, or cannot be written.
        """
        write_json(self.folder / f"{name}.json", content)

    def free(self) -> int:
        """Bytes that the disk has room for."""
        return shutil.disk_usage(self.folder).free

    def remove(self) -> None:
        """It is over, and the head is where it belongs. The text stays: it is small, and took long to write."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _digest(of: Any) -> str:
    return hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()[:16]


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A block that writes another file, which takes the place of the one before when it is whole, or never.

    Raises:
        OSError: the disk is full, or cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{_PARTIAL}")
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
