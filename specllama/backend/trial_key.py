"""What the answer of a trial depends on: the files of the tried libraries, and the machine."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import llama_cpp

from .cpu import cpu_flags, cpu_name


def trial_key(libraries: Iterable[str | os.PathLike[str]]) -> dict[str, str]:
    """A key for ``trial.tried``. Another build of a library, another processor or another system gives another key.

    Args:
        libraries: the files of the tried code. Of a file that cannot be read, only the path is in the key.
    """
    files = {f"library {number}": _file(os.fspath(path)) for number, path in enumerate(libraries)}
    return {**files, **_machine()}


def with_neighbours(library: str) -> list[Path]:
    """The file of libllama, and the files of ggml beside it. One of them has the code that is tried."""
    return [Path(library), *sorted(Path(library).parent.glob(f"*ggml*{Path(library).suffix}"))]


def _file(path: str) -> str:
    """The path, size and modification time of a file. Links are followed."""
    path = os.path.realpath(path)
    try:
        found = os.stat(path)
    except OSError:
        return path
    return f"{path}, {found.st_size} bytes, {found.st_mtime_ns}"


@functools.lru_cache(maxsize=1)
def _machine() -> dict[str, str]:
    return {
        "specllama": metadata.version("specllama"),
        "llama_cpp_python": llama_cpp.__version__,
        "cpu": cpu_name(),
        "cpu_flags": hashlib.sha256(" ".join(sorted(cpu_flags())).encode()).hexdigest(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }
