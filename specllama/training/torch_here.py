"""PyTorch, where the extra is installed. It is imported when a training asks for it, and never before."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

from specllama.backend.cpu import cpu_flags

from .work import replacing


def require_torch() -> Any:
    """The module ``torch``.

    Raises:
        ImportError: it is not here.
    """
    return _imported("torch")


def require_gguf_package() -> Any:
    """The module ``gguf``, which reads and writes weights.

    Raises:
        ImportError: it is not here.
    """
    return _imported("gguf")


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"train-draft needs PyTorch and gguf: pip install 'specllama[train]' ({error})") from error


def device_of_training() -> str:
    """Where it is computed: ``"cuda"`` where there is such a device, else ``"cpu"``."""
    return "cuda" if require_torch().cuda.is_available() else "cpu"


def computes_bfloat16(device: str) -> bool:
    """Whether products in bfloat16 are faster there than in float32: a CPU has instructions of its own for them."""
    if device == "cuda":
        return bool(require_torch().cuda.is_bf16_supported())
    return "amx_bf16" in cpu_flags()


def save(content: Any, path: Path) -> None:
    """Put a file of tensors in place of the one before, whole or not at all.

    Raises:
        OSError: the disk is full, or cannot be written.
    """
    try:
        with replacing(path) as temporary, open(temporary, "wb") as file:
            require_torch().save(content, file)
    except RuntimeError as error:  # what torch makes of a disk that is full
        raise OSError(f"{path} cannot be written: {error}") from error
