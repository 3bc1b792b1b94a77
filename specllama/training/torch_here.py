"""Imports PyTorch and gguf when a training needs them. They come with the extra ``train``."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

from specllama.backend.cpu import cpu_flags

from .work import replacing


def require_torch() -> Any:
    """Import the module ``torch``.

    Raises:
        ImportError: it is not installed.
    """
    return _imported("torch")


def require_gguf_package() -> Any:
    """Import the module ``gguf``, which reads and writes weights.

    Raises:
        ImportError: it is not installed.
    """
    return _imported("gguf")


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"train-draft needs PyTorch and gguf: pip install 'specllama[train]' ({error})") from error


def device_of_training() -> str:
    """PyTorch's device for training: ``"cuda"`` if there is such a GPU, and ``"cpu"`` otherwise."""
    return "cuda" if require_torch().cuda.is_available() else "cpu"


def computes_bfloat16(device: str) -> bool:
    """Whether products are faster in bfloat16 than in float32. On a CPU this needs special instructions."""
    if device == "cuda":
        return bool(require_torch().cuda.is_bf16_supported())
    return "amx_bf16" in cpu_flags()


def save(content: Any, path: Path) -> None:
    """Write a file of tensors. The old file stays until the new one is complete.

    Raises:
        OSError: the disk is full, or cannot be written.
    """
    try:
        with replacing(path) as temporary, open(temporary, "wb") as file:
            require_torch().save(content, file)
    except RuntimeError as error:  # torch's error for a disk that is full
        raise OSError(f"{path} cannot be written: {error}") from error
