"""What every model source needs: progress, verified copying, free space, and a lock."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Protocol

import filelock

CHUNK = 1 << 22


class SourceError(RuntimeError):
    """One source could not give the file; the next one may."""


class Listener(Protocol):
    """Hears what a long task does. The command line draws it; a library caller may ignore it."""

    def note(self, text: str) -> None:
        """One line worth reading."""

    def progress(self, step: str, done: int, total: int) -> None:
        """`done` of `total` units of `step` (bytes, unless the task says otherwise)."""


class Silent:
    """The listener of a caller that wants to hear nothing."""

    def note(self, text: str) -> None:
        """Ignore it."""

    def progress(self, step: str, done: int, total: int) -> None:
        """Ignore it."""


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(CHUNK):
            digest.update(block)
    return digest.hexdigest()


def write_joined(
    parts: Iterable[Callable[[], contextlib.AbstractContextManager[IO[bytes]]]],
    destination: Path,
    size: int,
    advance: Callable[[int], None],
) -> str:
    """Write the parts one after the other into `destination`, and return the SHA-256 of the whole.

    Args:
        parts: opens each part when its turn comes.
        destination: overwritten; a temporary name of the caller's.
        size: bytes expected in all. More than that stops the copy, so that a crafted archive cannot fill the disk.
        advance: called with the bytes written so far.

    Raises:
        SourceError: the parts hold more than `size` bytes.
    """
    digest = hashlib.sha256()
    written = 0
    with destination.open("wb") as out:
        for open_part in parts:
            with open_part() as part:
                while block := part.read(CHUNK):
                    written += len(block)
                    if written > size:
                        raise SourceError(f"holds more than the {size} bytes expected")
                    digest.update(block)
                    out.write(block)
                    advance(written)
        out.flush()
        os.fsync(out.fileno())
    return digest.hexdigest()


def require_space(
    folder: Path, needed: int, purpose: str, elsewhere: str = "set SPECLLAMA_CACHE to a folder on another disk"
) -> None:
    """Check that `needed` more bytes fit into `folder`.

    Args:
        folder: where they are to be.
        needed: how many.
        purpose: what they are for.
        elsewhere: how to use another disk.

    Raises:
        OSError: they do not; the message says how much is missing and how to use another disk.
    """
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(
            f"{purpose} needs {needed / 1e9:.2f} GB in {folder}, where {free / 1e9:.2f} GB are free: "
            f"make room, or {elsewhere}"
        )


@contextlib.contextmanager
def locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file `path`; the system frees it even when this process is killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(path)
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        on_wait()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
