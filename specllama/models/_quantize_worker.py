"""The child process in which llama.cpp quantizes. Its arguments are IN OUT TYPE THREADS, or IN TYPE,TYPE,... to plan.

A child process is used because llama.cpp can abort on a damaged file, and cannot be interrupted while it works. The
child writes its progress to stdout ("progress 12 290"), and llama.cpp's errors to stderr. To plan, it quantizes
nothing, and only writes which types the tensors would get ("tensor TYPE q5_0 NAME", and "planned TYPE" at the end).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any

import llama_cpp

from specllama.backend.prepare import prepare_backend
from specllama.models.catalog import PURE

_ERROR = 4  # GGML_LOG_LEVEL_ERROR
_TENSOR = re.compile(rb"\[\s*(\d+)/\s*(\d+)\]")
_PLANNED = re.compile(r"\[ *\d+/ *\d+\] (.+?) +- \[[^]]*\], type = *(\w+), size =[^(]*(?:\((\w+)\))?")


def _listen(level: int, text: bytes, _: object) -> None:
    if level == _ERROR:
        sys.stderr.write(text.decode("utf-8", errors="replace"))
    elif match := _TENSOR.match(text):
        _tell(f"progress {int(match[1])} {int(match[2])}")


def _tell(line: str) -> None:
    try:
        print(line, flush=True)
    except OSError:
        # The parent process is gone, so nobody will rename the unfinished file.
        with contextlib.suppress(OSError):
            os.unlink(sys.argv[2])
        os._exit(1)


def main(arguments: list[str]) -> int:
    """Quantize one file, or tell which types its tensors would get. Returns llama.cpp's code: 0 is success."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # stderr is for llama.cpp's messages about the file
        prepare_backend()
    if len(arguments) == 2:
        return _plan(arguments[0], arguments[1].split(","))
    source, destination, file_type, threads = arguments
    parameters = _parameters(file_type)
    parameters.nthread = int(threads)
    code = _quantized(source, destination, parameters, _listen)
    _tell("done")
    return code


def _plan(source: str, file_types: list[str]) -> int:
    """Tell which types the tensors would get. Older releases of llama.cpp cannot plan: then nothing is told."""
    code = 0
    for file_type in file_types:
        parameters = _parameters(file_type)
        if not hasattr(parameters, "dry_run"):
            return 0
        parameters.dry_run = True
        said: list[bytes] = []  # llama.cpp passes each line in several parts
        code = code or _quantized(source, os.devnull, parameters, lambda _level, text, _data, to=said: to.append(text))
        for line in b"".join(said).decode("utf-8", errors="replace").splitlines():
            if match := _PLANNED.match(line):
                print(f"tensor {file_type} {match[3] or match[2]} {match[1]}")
        if not code:
            print(f"planned {file_type}", flush=True)
    return code


def _parameters(file_type: str) -> Any:
    parameters = llama_cpp.llama_model_quantize_default_params()
    prefix = "LLAMA_FTYPE_ALL_" if file_type == "F32" else "LLAMA_FTYPE_MOSTLY_"
    parameters.ftype = getattr(llama_cpp, prefix + file_type.removesuffix(PURE))
    parameters.pure = file_type.endswith(PURE)
    parameters.allow_requantize = True
    return parameters


def _quantized(source: str, destination: str, parameters: Any, listen: Callable[..., Any]) -> int:
    callback = llama_cpp.llama_log_callback(listen)
    llama_cpp.llama_log_set(callback, ctypes.c_void_p(0))
    return int(llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(destination), ctypes.byref(parameters)))
