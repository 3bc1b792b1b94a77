"""Says why a model file cannot be loaded."""

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
from .header_checks import require_sound
from .opening_checks import lora_errors
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

    llama_cpp sets the logger's level meanwhile, and what llama.cpp is offered for the weights is of the whole process.
    """
    with _turn:
        yield


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


class _Here(threading.local):
    """What this thread wants of llama.cpp's messages."""

    silent = 0
    """In how many blocks it is that show none."""
    errors: list[str] | None = None
    """Where those of errors go."""
    raised: list[BaseException] | None = None
    """Where goes what a signal's handler raises while one is heard."""


_here = _Here()


def _hear(level: int, text: bytes) -> None:
    levels, logger = _logger.GGML_LOG_LEVEL_TO_LOGGING_LEVEL, _logger.logger
    if text.startswith(_OF_A_DECODE_THAT_ENDED) and not logger.isEnabledFor(logging.DEBUG):
        return
    if level == _ERROR_LEVEL and _here.errors is not None:
        _here.errors.append(text.decode("utf-8", errors="replace").strip())
    if not _here.silent and logger.level <= levels.get(level, logging.DEBUG):  # as llama_cpp has it
        show(text.decode("utf-8", errors="replace"))


def _fail(error: BaseException) -> None:
    """Keep what a signal's handler raised in `_hear`."""
    if _here.raised is None or not isinstance(error, (KeyboardInterrupt, SystemExit)):
        raise error
    _here.raised.append(error)


_callback: Any = llama_cpp.llama_log_callback(_core.listen(_hear, _fail))


def listen() -> None:
    """Hear what llama.cpp says, where somebody has set another callback, too."""
    llama_cpp.llama_log_set(_callback, ctypes.c_void_p(0))
    images: Any = sys.modules.get("llama_cpp.mtmd_cpp")  # a library with a log of its own, which few load
    for name in ("mtmd_helper_log_set", "mtmd_log_set"):
        if hasattr(images, name):
            getattr(images, name)(_callback, ctypes.c_void_p(0))
            break


class quiet:  # noqa: N801  # it is called like the function that it stands for
    """Within the block nothing of what llama.cpp says in this thread is shown, unless it is to be verbose.

    In place of llama_cpp's ``suppress_stdout_stderr``, which exchanges the streams of the whole process: what other
    threads and child processes write meanwhile would be lost.
    """

    # Models are freed while the interpreter ends, too, when the names of modules are gone.
    _here, _listen, _ends = _here, staticmethod(listen), staticmethod(sys.is_finalizing)

    def __init__(self, disable: bool = False) -> None:
        self._is_quiet = not disable

    def __enter__(self) -> quiet:
        if not self._ends():
            self._listen()
        self._here.silent += self._is_quiet
        return self

    def __exit__(self, *exception: object) -> None:
        self._here.silent -= self._is_quiet


listen()
for _name in ("llama", "_internals", "llama_chat_format"):
    _module: Any = importlib.import_module(f"llama_cpp.{_name}")
    if hasattr(_module, "suppress_stdout_stderr"):
        _module.suppress_stdout_stderr = quiet


@contextlib.contextmanager
def captured_errors() -> Iterator[list[str]]:
    """Within the block llama.cpp's error messages of this thread are collected.

    While llama.cpp loads, Python runs nothing but what hears its messages, so that is where Ctrl-C and SIGTERM arrive.
    What they raise is raised behind the block.
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
