"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

PARTIAL = ".partial"
"""How a file that is being written ends. A process that is killed leaves it."""


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """A context manager that gives a path beside a file, at which nothing is yet.

    What the block writes there replaces the file afterwards. An error or Ctrl-C at any place leaves only the old file,
    because the name is chosen before there is a new one.

    Args:
        path: the file.
        durable: whether the content reaches the disk before it replaces the file, which takes a while.

    Raises:
        OSError: the disk is full, or cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{PARTIAL}")
    try:
        yield temporary
        if durable:
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
