"""The child process in which llama.cpp quantizes. Its arguments are IN OUT TYPE THREADS.

It is a process of its own because llama.cpp can abort on a damaged file, and cannot be interrupted while it works.
It writes its progress to stdout ("progress 12 290"), and llama.cpp's errors to stderr.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
import warnings

import llama_cpp

from specllama.backend.prepare import prepare_backend
from specllama.models.catalog import PURE

_ERROR = 4  # GGML_LOG_LEVEL_ERROR
_TENSOR = re.compile(rb"\[\s*(\d+)/\s*(\d+)\]")


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
    """Quantize one file. Returns llama.cpp's code: 0 is success."""
    source, destination, file_type, threads = arguments
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # stderr is for llama.cpp's messages about the file
        prepare_backend()
    callback = llama_cpp.llama_log_callback(_listen)
    llama_cpp.llama_log_set(callback, ctypes.c_void_p(0))
    parameters = llama_cpp.llama_model_quantize_default_params()
    prefix = "LLAMA_FTYPE_ALL_" if file_type == "F32" else "LLAMA_FTYPE_MOSTLY_"
    parameters.ftype = getattr(llama_cpp, prefix + file_type.removesuffix(PURE))
    parameters.pure = file_type.endswith(PURE)
    parameters.nthread = int(threads)
    parameters.allow_requantize = True
    code = llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(destination), ctypes.byref(parameters))
    _tell("done")
    return int(code)
