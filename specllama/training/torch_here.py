"""Imports PyTorch and gguf when a training needs them. These packages come with the extra ``train``."""

from __future__ import annotations

import contextlib
import importlib
import os
from pathlib import Path
from types import ModuleType
from typing import Any

from specllama.backend.cpu import cpu_flags
from specllama.backend.replacing import replacing


def require_torch() -> Any:
    """Import the module ``torch``.

    Raises:
        ImportError: the package is not installed.
    """
    # oneDNN keeps the code that it makes for each shape, by default for 1024 shapes. Nearly every batch has a new
    # shape: after 80 batches, 430 MB of code were kept, and none of it was used again.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "32")
    return _imported("torch")


def require_gguf_package() -> Any:
    """Import the module ``gguf``, which reads and writes weights.

    Raises:
        ImportError: the package is not installed.
    """
    return _imported("gguf")


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"a training needs PyTorch and gguf: pip install 'specllama[train]' ({error})") from error


def device_of_training() -> str:
    """PyTorch's device for training: ``"cuda"`` if there is such a GPU, and ``"cpu"`` otherwise."""
    return "cuda" if require_torch().cuda.is_available() else "cpu"


def use_threads(count: int) -> None:
    """Set the number of threads that PyTorch computes with on a CPU.

    The number is at most OpenMP's limit (OMP_THREAD_LIMIT). PyTorch 2.14 divides a product in bfloat16 among as many
    threads as were set. If OpenMP starts fewer threads, some parts are not computed, and the result is wrong.
    """
    with contextlib.suppress(ValueError):
        count = min(count, max(1, int(os.environ.get("OMP_THREAD_LIMIT", count))))
    require_torch().set_num_threads(count)


def computes_bfloat16(device: str) -> bool:
    """Whether products are faster in bfloat16 than in float32. On a CPU this needs special instructions."""
    if device == "cuda":
        return bool(require_torch().cuda.is_bf16_supported())
    return not {"amx_bf16", "avx512_bf16"}.isdisjoint(cpu_flags())


def save(content: Any, path: Path) -> None:
    """Write a file of tensors. The old file stays until the new one is complete.

    Raises:
        OSError: the disk is full, or cannot be written.
    """
    try:
        with replacing(path, durable=True) as temporary, open(temporary, "wb") as file:
            require_torch().save(content, file)
    except RuntimeError as error:  # torch's error for a disk that is full
        raise OSError(f"{path} cannot be written: {error}") from error
