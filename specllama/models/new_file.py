"""Checks the place of a new file before the work for it begins."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from .gguf_values import parts_of

ELSEWHERE = "name a file on another disk with --output"
HEADER_ROOM = 64 << 20
"""The bytes that a file needs besides its weights: for the vocabulary and padding."""


def require_free_place(output: Path, sources: Iterable[str | os.PathLike[str]]) -> None:
    """Check that a new file may be written under a name. An ordinary file that has the name may be replaced.

    Args:
        output: the file that will be written.
        sources: the files that it is made from. All parts of a split model count.

    Raises:
        ValueError: the name is that of a source, of a folder, or of something else that is no file; or it is not UTF-8,
            as the name of a model must be.
    """
    try:
        os.fspath(output).encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"the output {str(output)!r} is not UTF-8: name another one with --output") from None
    parts = [part for source in sources for part in parts_of(os.fspath(source)) if os.path.exists(part)]
    if output.exists() and any(output.samefile(part) for part in parts):
        raise ValueError(f"the output {output} is the input: name another one with --output")
    if output.is_dir():
        raise ValueError(f"the output {output} is a folder: name a file in it")
    if output.exists() and not output.is_file():  # a device, for example, must not be replaced
        raise ValueError(f"the output {output} is no file: name another one with --output")


def require_room(output: Path, needed: int) -> None:
    """Check that a new file fits onto its disk.

    Args:
        output: the file, in a folder that exists.
        needed: the file's size in bytes.

    Raises:
        OSError: the file does not fit.
    """
    free = shutil.disk_usage(output.parent).free
    if free < needed:
        raise OSError(
            f"making {output.name} needs {needed / 1e9:.2f} GB in {output.parent}, where {free / 1e9:.2f} GB are free: "
            f"make room, or {ELSEWHERE}"
        )


def make_folder(folder: Path) -> None:
    """Make the folder of a new file, if it does not exist.

    Raises:
        OSError: the folder cannot be made, or files in it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"the folder {folder} cannot be made: {error}; name a file in another one") from error
    if not os.access(folder, os.W_OK):
        raise OSError(f"the folder {folder} cannot be written: name a file in another one with --output")
