"""Wraps the loading of models: checks the file before, and explains llama.cpp's failures."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
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

from specllama import _core
from specllama.backend.prepare import prepare_backend
from specllama.backend.streams import show

from . import catalog
from .gguf_header import read_header
from .gguf_values import UnusableFileError, parts_of, read_whole_header
from .header_checks import require_sound
from .opening_checks import lora_errors
from .weights_digest import Digest

_WARNING_LEVEL, _ERROR_LEVEL = 3, 4  # log levels of ggml.h; the numbers in llama_cpp's own table are wrong by one
_OF_A_DECODE_THAT_ENDED = b"decode: removing memory module entries"  # logged after Ctrl-C; no error
_turn = threading.RLock()


def _renew_turn() -> None:
    """Give a forked child a new lock: a thread that was loading in the parent does not exist in the child."""
    global _turn
    _turn = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_turn)


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """A context manager: only one thread at a time opens a model or a context.

    Opening a model changes the level of llama_cpp's logger, and the buffer types that llama.cpp may put weights into.
    Both belong to the whole process.
    """
    with _turn:
        yield


@contextlib.contextmanager
def checked_loading(
    path: str, *, as_head: bool = False, overrides: Mapping[str, Any] | None = None
) -> Iterator[Digest | None]:
    """A context manager for loading a model: check the file, and raise llama.cpp's own reason if loading fails.

    Args:
        path: the model's file.
        as_head: whether it is loaded as a head of its target.
        overrides: the ``kv_overrides`` that it is loaded with.

    Yields:
        A digest of the model's weights; None if the file is damaged.

    Raises:
        ModelNotFoundError: there is no such file.
        ValueError: the file is no GGUF file, is damaged, or is not a model (but a LoRA adapter, for example).
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
                raise ValueError(f"no context for {path}: {why_no_context(errors, smaller)}") from error
            if "Failed to load model" not in str(error):
                raise
            raise ValueError(f"cannot load {path}: {_reason(path, errors)}") from error


def require_gguf(path: str) -> None:
    """Check that a path is that of a GGUF file.

    Raises:
        ModelNotFoundError: there is no such file.
        ValueError: the path is that of something else.
    """
    try:
        found = os.stat(path)
    except PermissionError:
        raise
    except (OSError, ValueError):  # ValueError: no file can have this name
        named = path if path.strip() else repr(path)
        raise catalog.ModelNotFoundError(
            f"{named} does not exist: check the path, or see `specllama pull --list` for model names"
        ) from None
    if stat.S_ISDIR(found.st_mode):
        raise ValueError(f"{path} is a directory: give the path of a .gguf file in it")
    if not stat.S_ISREG(found.st_mode):  # opening a pipe would wait for ever
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


def require_whole(path: str) -> None:
    """Check that a model's files are as long as their headers say. A download may have been cut off.

    Raises:
        UnusableFileError: a file is too short, or its header is damaged.
        OSError: a file cannot be read.
    """
    for part in parts_of(path):
        read_whole_header(part, texts=False)


def why_no_context(errors: Sequence[str], smaller: str) -> str:
    """Why llama.cpp has made no context, and what the user can do if memory was too small.

    Args:
        errors: llama.cpp's error messages.
        smaller: the advice if memory was too small.
    """
    # The first message has the reason. Later messages only follow from it.
    said = errors[0] if errors else "llama.cpp gave no reason"
    return f"{said}; {smaller}" if not errors or re.search("alloc|memory|buffer", said) else said


def _reason(path: str, errors: list[str]) -> str:
    try:
        header = read_header(path)
    except UnusableFileError as error:
        return f"{error}; {catalog.remedy(path)}"
    if header.kind == "adapter":
        return "it is a LoRA adapter and not a model; load the base model and pass this file as lora_path"
    # The first message has the reason. Later messages only say that loading failed.
    reason = errors[0] if errors else "llama.cpp gave no reason; run again with verbose=True"
    if header.num_splits > 1:
        return f"{reason}; its {header.num_splits} parts must be in one folder, with their original names"
    return reason


class _Here(threading.local):
    """How this thread wants llama.cpp's messages to be treated."""

    silent = 0
    """The number of nested `quiet` blocks."""
    errors: list[str] | None = None
    """The list that collects error messages; None if they are not collected."""
    raised: list[BaseException] | None = None
    """The list that collects exceptions of signal handlers while a message is handled; None where they are not kept."""


_here = _Here()


def _hear(level: int, text: bytes) -> None:
    levels, logger = _logger.GGML_LOG_LEVEL_TO_LOGGING_LEVEL, _logger.logger
    if text.startswith(_OF_A_DECODE_THAT_ENDED) and not logger.isEnabledFor(logging.DEBUG):
        return
    if level == _ERROR_LEVEL and _here.errors is not None:
        _here.errors.append(text.decode("utf-8", errors="replace").strip())
    if level == _WARNING_LEVEL and _here.errors is not None and not logger.isEnabledFor(logging.WARNING):
        return  # llama_cpp's table takes a warning for an error, so it would be shown
    if not _here.silent and logger.level <= levels.get(level, logging.DEBUG):  # llama_cpp's own rule
        show(text.decode("utf-8", errors="replace"))


def _fail(error: BaseException) -> None:
    """Keep an exception that a signal handler has raised in `_hear`. Any other exception is raised."""
    if _here.raised is None or not isinstance(error, (KeyboardInterrupt, SystemExit)):
        raise error
    _here.raised.append(error)


_callback: Any = llama_cpp.llama_log_callback(_core.listen(_hear, _fail))


def listen() -> None:
    """Make `_hear` the receiver of llama.cpp's messages, in place of any other receiver."""
    llama_cpp.llama_log_set(_callback, ctypes.c_void_p(0))
    images: Any = sys.modules.get("llama_cpp.mtmd_cpp")  # the library for images has its own log, and is rarely loaded
    for name in ("mtmd_helper_log_set", "mtmd_log_set"):
        if hasattr(images, name):
            getattr(images, name)(_callback, ctypes.c_void_p(0))
            break


class quiet:  # noqa: N801  # it is called like the function that it stands for
    """A context manager that shows none of llama.cpp's messages in this thread, unless it is disabled.

    An exception that a signal handler raises while llama.cpp writes a message is raised at the end of the outermost
    block.

    This class replaces llama_cpp's ``suppress_stdout_stderr``, which redirects the streams of the whole process, so
    that the output of other threads and of child processes gets lost.
    """

    # Models are also freed while the interpreter ends. Then a module's global names are gone, so they are kept here.
    _here, _listen, _ends = _here, staticmethod(listen), staticmethod(sys.is_finalizing)

    def __init__(self, disable: bool = False) -> None:
        self._is_quiet = not disable

    def __enter__(self) -> quiet:
        if not self._ends():
            self._listen()
        self._here.silent += self._is_quiet
        self._outer = self._here.raised
        if self._outer is None:
            self._here.raised = []
        return self

    def __exit__(self, *exception: object) -> None:
        self._here.silent -= self._is_quiet
        raised, self._here.raised = self._here.raised, self._outer
        if raised and self._outer is None:
            raise raised[0]


listen()
for _name in ("llama", "_internals", "llama_chat_format"):
    _module: Any = importlib.import_module(f"llama_cpp.{_name}")
    if hasattr(_module, "suppress_stdout_stderr"):
        _module.suppress_stdout_stderr = quiet


@contextlib.contextmanager
def captured_errors() -> Iterator[list[str]]:
    """A context manager that collects llama.cpp's error messages in this thread.

    While llama.cpp loads, saves a state or frees a model, the only Python code that runs is the receiver of its
    messages, so Ctrl-C and SIGTERM arrive there. An exception of their handlers is raised at the end of the block.
    """
    before = _here.errors, _here.raised
    errors: list[str] = []
    raised: list[BaseException] = []
    _here.errors, _here.raised = errors, raised
    listen()
    try:
        yield errors
    finally:
        _here.errors, _here.raised = before
        if raised:
            raise raised[0]
