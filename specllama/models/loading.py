"""Says why a model file cannot be loaded."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import logging
import os
import re
import stat
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import llama_cpp
from llama_cpp import _logger

from specllama.backend.prepare import prepare_backend

from . import catalog
from .gguf_header import read_header
from .header_checks import require_sound
from .opening import lora_errors
from .weights_digest import Digest

_ERROR_LEVEL = 4  # GGML_LOG_LEVEL_ERROR of ggml.h; llama_cpp's own table is off by one
_OF_A_DECODE_THAT_ENDED = b"decode: removing memory module entries"  # by Ctrl-C, say: it is no error
_turn = threading.RLock()


def _renew_turn() -> None:
    """In a forked child nobody is loading: the thread that was is not there."""
    global _turn
    _turn = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_turn)


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """A block in which a thread opens a model or a context, while others wait.

    llama_cpp exchanges the process's stdout and stderr meanwhile, and the logger's level. Two threads at once would
    leave them exchanged.
    """
    with _turn:
        yield


@contextlib.contextmanager
def quiet(verbose: bool = False) -> Iterator[None]:
    """Within the block llama.cpp warns of nothing, unless it is to be verbose."""
    logger = logging.getLogger("llama-cpp-python")
    level = logger.level
    if not verbose:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def explained(
    path: str, *, as_head: bool = False, overrides: Mapping[str, Any] | None = None
) -> Iterator[Digest | None]:
    """Wrap the loading of a model: refuse what is no model, and give llama.cpp's own reason if it fails.

    Args:
        path: its file.
        as_head: it is loaded as a head over its target.
        overrides: ``kv_overrides`` with which it is loaded.

    Yields:
        What names its weights.

    Raises:
        ModelNotFoundError: there is no such file.
        ValueError: not a GGUF file, a truncated or damaged one, or not a model (a LoRA adapter, say).
    """
    require_gguf(path)
    weights = require_sound(path, as_head=as_head, overrides=overrides)
    prepare_backend()
    with one_at_a_time(), captured_errors() as errors, lora_errors(errors):
        try:
            yield weights
        except ValueError as error:
            if "Failed to create llama_context" in str(error):
                smaller = "a smaller n_ctx (-c) needs less memory"
                raise ValueError(f"no context over {path}: {why_no_context(errors, smaller)}") from error
            if "Failed to load model" not in str(error):
                raise
            raise ValueError(f"cannot load {path}: {_reason(path, errors)}") from error


def require_gguf(path: str) -> None:
    """Refuse what is no GGUF file.

    Raises:
        ModelNotFoundError: there is no such file.
        ValueError: it is something else.
    """
    try:
        found = os.stat(path)
    except PermissionError:
        raise
    except (OSError, ValueError):  # ValueError: a name that can be none
        raise catalog.ModelNotFoundError(
            f"{path} does not exist: check the path, or see `specllama pull --list` for model names"
        ) from None
    if stat.S_ISDIR(found.st_mode):
        raise ValueError(f"{path} is a directory: give the path of a .gguf file in it")
    if not stat.S_ISREG(found.st_mode):  # one that reads from a pipe would wait for ever
        raise ValueError(f"{path} is not a file: llama.cpp reads models from files only")
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"the name {path!r} is not UTF-8, and llama_cpp takes no other: rename the file") from None
    with open(path, "rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        why = "it is empty" if not magic else f"it begins with {magic!r} instead of b'GGUF'"
        raise ValueError(f"{path} is not a GGUF file: {why}; {catalog.remedy(path)}")


def why_no_context(errors: Sequence[str], smaller: str) -> str:
    """Why llama.cpp has made no context, and what to do if the reason is memory.

    Args:
        errors: what llama.cpp said.
        smaller: the way out where memory does not suffice.
    """
    # The first line says why, and the others what failed because of it.
    said = errors[0] if errors else "llama.cpp gave no reason"
    return f"{said}; {smaller}" if not errors or re.search("alloc|memory|buffer", said) else said


def _reason(path: str, errors: list[str]) -> str:
    try:
        header = read_header(path)
    except ValueError as error:
        return f"{error}; {catalog.remedy(path)}"
    if header.kind == "adapter":
        return "it is a LoRA adapter and not a model; load the base model and pass this file as lora_path"
    # The last lines only say that loading failed; the first one says why.
    reason = errors[0] if errors else "llama.cpp gave no reason; run again with verbose=True"
    if header.num_splits > 1:
        return f"{reason}; its {header.num_splits} parts must lie in one folder, under the names that they came with"
    return f"{reason}; {catalog.remedy(path)}" if "corrupted or incomplete" in reason else reason


class _Errors(threading.local):
    """llama.cpp's error messages, of the thread that wants to know."""

    collected: list[str] | None = None


_errors = _Errors()


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def collect(level: int, text: bytes, user_data: ctypes.c_void_p) -> None:
    """Hand every message on to llama_cpp's own callback.

    It lives as long as Python does: a thread of llama.cpp's may be about to call it, whenever another one is set.
    """
    if text.startswith(_OF_A_DECODE_THAT_ENDED) and not _logger.logger.isEnabledFor(logging.DEBUG):
        return
    if level == _ERROR_LEVEL and _errors.collected is not None:
        _errors.collected.append(text.decode("utf-8", errors="replace").strip())
    _logger.llama_log_callback(level, text, user_data)


atexit.register(llama_cpp.llama_log_set, _logger.llama_log_callback, ctypes.c_void_p(0))  # for models freed at exit


@contextlib.contextmanager
def captured_errors() -> Iterator[list[str]]:
    """Within the block llama.cpp's error messages of this thread are collected."""
    before, _errors.collected = _errors.collected, []
    llama_cpp.llama_log_set(collect, ctypes.c_void_p(0))  # again, where somebody has set another one
    try:
        with _signals_heeded():
            yield _errors.collected
    finally:
        _errors.collected = before


@contextlib.contextmanager
def _signals_heeded() -> Iterator[None]:
    """Raise behind the block what a signal handler raised in a callback.

    While llama.cpp loads, Python runs nothing but the callback for its messages, so that is where Ctrl-C and SIGTERM
    arrive, and ctypes drops what a callback raises.
    """
    if threading.current_thread() is not threading.main_thread():  # signals are handled in that one only
        yield
        return
    raised: list[BaseException] = []
    show = sys.unraisablehook

    def keep(unraisable: sys.UnraisableHookArgs) -> None:
        if isinstance(unraisable.exc_value, (KeyboardInterrupt, SystemExit)):
            raised.append(unraisable.exc_value)
        else:
            show(unraisable)

    sys.unraisablehook = keep
    try:
        yield
    finally:
        sys.unraisablehook = show
        if raised:
            raise raised[0]
