"""Says why a model file cannot be loaded."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator

import llama_cpp
from llama_cpp import _logger

from .gguf_header import read_header


class ModelNotFoundError(FileNotFoundError, ValueError):
    """There is no such model file. A ValueError too, because that is what llama_cpp.Llama raises."""


_ERROR_LEVEL = 4  # GGML_LOG_LEVEL_ERROR of ggml.h; llama_cpp's own table is off by one


@contextlib.contextmanager
def explained(path: str) -> Iterator[None]:
    """Wrap the loading of a model: refuse what is no model, and give llama.cpp's own reason if it fails.

    Raises:
        ModelNotFoundError: there is no such file.
        ValueError: not a GGUF file, a truncated one, or not a model (a LoRA adapter, say).
    """
    _require_gguf(path)
    with _captured_errors() as errors:
        try:
            yield
        except ValueError as error:
            if "Failed to load model" not in str(error):
                raise
            raise ValueError(f"cannot load {path}: {_reason(path, errors)}") from error


def _require_gguf(path: str) -> None:
    if not os.path.exists(path):
        raise ModelNotFoundError(
            f"{path} does not exist: check the path, or see `specllama pull --list` for model names"
        )
    if os.path.isdir(path):
        raise ValueError(f"{path} is a directory: give the path of a .gguf file in it")
    with open(path, "rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise ValueError(f"{path} is not a GGUF file: it begins with {magic!r} instead of b'GGUF'")


def _reason(path: str, errors: list[str]) -> str:
    try:
        header = read_header(path)
    except ValueError as error:
        return str(error)
    if header.kind == "adapter":
        return "it is a LoRA adapter and not a model; load the base model and pass this file as lora_path"
    # The last lines only say that loading failed; the first one says why.
    return errors[0] if errors else "llama.cpp gave no reason; run again with verbose=True"


@contextlib.contextmanager
def _captured_errors() -> Iterator[list[str]]:
    """Collects llama.cpp's error messages, and still hands every message to llama_cpp's own callback."""
    errors: list[str] = []

    @llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
    def collect(level: int, text: bytes, user_data: ctypes.c_void_p) -> None:
        if level == _ERROR_LEVEL:
            errors.append(text.decode("utf-8", errors="replace").strip())
        _logger.llama_log_callback(level, text, user_data)

    llama_cpp.llama_log_set(collect, ctypes.c_void_p(0))
    try:
        yield errors
    finally:
        llama_cpp.llama_log_set(_logger.llama_log_callback, ctypes.c_void_p(0))
