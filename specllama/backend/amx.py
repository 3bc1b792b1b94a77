"""llama.cpp's AMX code (matrix tiles of x86): used where it works, and turned off where the compiler broke it.

GCC 12, and other compilers of its age, drop the stores that fill the memory which ``_tile_loadconfig`` reads. Then the
process crashes at the first product of quantized weights with several tokens.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import llama_cpp
from llama_cpp import llama_cpp as _bindings

from specllama import _core

from .cpu import cpu_flags
from .ggml import CpuBackend
from .kernels import addresses_of_functions
from .trial import tried
from .trial_key import trial_key, with_neighbours

_NAME = "AMX"
_FLAG = "amx_int8"
_TRIAL = "backend._product_trial"
_SECONDS = 60.0  # the time limit of the trial, which usually takes less than a second
NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
"""The compiler flags by which ``-march=native`` leaves out AMX, and nothing else."""


def why_amx_is_off() -> str | None:
    """Turn AMX off for this process, if AMX would crash it. This must be called before a model is loaded.

    Returns:
        Why AMX was turned off; None if llama.cpp does not use AMX on this machine, or if AMX works.
    """
    if not sys.platform.startswith("linux") or _FLAG not in cpu_flags():
        return None
    if not _is_built_in():
        return None
    library = _bindings._lib._name
    trial = tried(_TRIAL, [library, _NAME], key=trial_key(with_neighbours(library)), seconds=_SECONDS)
    if trial.ok:
        return None
    try:
        cpu = CpuBackend(_bindings._lib)
        _core.give_no_weights(addresses_of_functions(cpu), cpu.registry, cpu.extra_buffer_types()[_NAME])
    except (LookupError, RuntimeError):  # an unknown ggml
        _leave_out_all_types()
    return trial.reason


def _is_built_in() -> bool:
    """Whether models would use AMX. They would not if the operating system does not let processes use AMX's tiles."""
    try:
        return _NAME in CpuBackend(_bindings._lib).extra_buffer_types()
    except LookupError:
        return b"AMX_INT8 = 1" in llama_cpp.llama_print_system_info()


def _leave_out_all_types() -> None:
    """Have llama_cpp use no extra buffer type at all. ggml's repacking of weights is lost, too, but AMX is not used."""
    make = llama_cpp.llama_model_default_params

    @functools.wraps(make)
    def without() -> Any:
        params = make()
        params.use_extra_bufts = False
        return params

    _bindings.llama_model_default_params = llama_cpp.llama_model_default_params = without
