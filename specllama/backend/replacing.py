"""Replaces files so that a file always has either its old or its whole new content."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

PARTIAL = ".partial"
"""The end of the name of a file that is being written. A killed process leaves such a file behind."""


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """A context manager that gives an unused path beside a file.

    The block writes a new file to this path. At the end the new file replaces the old one. An error or Ctrl-C at any
    place leaves only the old file, because the path is chosen before the new file exists, which is then deleted.

    Args:
        path: the file.
        durable: whether to wait until the new content is on the disk (``fsync``) before it replaces the file.

    Raises:
        OSError: the disk is full, or cannot be written to.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}{PARTIAL}")
    try:
        yield temporary
        if durable:
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
