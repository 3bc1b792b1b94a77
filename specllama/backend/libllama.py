"""Access to libllama: finds addresses in the library that llama_cpp has loaded, and checks its ABI.

The extension is not linked to libllama, because the linked library would be a second copy beside llama_cpp's. Of our
Python code, only this module finds addresses in libllama.
"""

from __future__ import annotations

import ctypes
import os
import types
from collections.abc import Iterable, Mapping
from typing import Any

import llama_cpp
from llama_cpp import llama_cpp as _bindings

from specllama import _core

from .ggml import address_of, function_of_ggml, ggml_version

_SUPPORTED = "llama-cpp-python >= 0.3.16, < 0.4"
_REMEDY = f"specllama works with {_SUPPORTED}: pip install --upgrade 'llama-cpp-python>=0.3.16,<0.4' specllama"
_PARAMETERS: Mapping[str, Mapping[str, Any]] = {
    "llama_model_params": {"vocab_only": False, "use_extra_bufts": True},
    "llama_context_params": {"type_k": 1, "type_v": 1, "embeddings": False, "offload_kqv": True, "op_offload": True},
}
"""Structs that are passed by value, and some fields with the same default in every release (1 is F16)."""
_GPUS = (1, 2)  # GGML_BACKEND_DEVICE_TYPE_GPU, _IGPU
_POINTERS = (ctypes.c_void_p, ctypes._Pointer, *ctypes.CFUNCTYPE(None).__bases__)  # fields of these types are null


def load_api(library: types.ModuleType | Any = llama_cpp) -> _core.LlamaApi:
    """Find every libllama function that the extension calls. Optional functions may be missing.

    Args:
        library: the module that holds the ctypes functions and structures: ``llama_cpp``.

    Raises:
        ImportError: a function is missing or takes another number of arguments, or a structure is laid out
            differently. The message names the installed version and what to do.
    """
    _check_structs(library)
    _check_parameters(library)
    return _core.LlamaApi(_addresses(library))


def _addresses(library: Any) -> Mapping[str, int]:
    addresses = {}
    for wanted in _core.required_functions():
        name = wanted.name
        function = getattr(library, name, None)
        if function is None:
            raise _mismatch(library, f"it has no function {name}")
        found = len(function.argtypes or ())
        if found != wanted.num_arguments:
            raise _mismatch(library, f"its {name} takes {found} arguments, and {wanted.num_arguments} were expected")
        addresses[name] = address_of(function)
    for wanted in _core.optional_functions():
        function = getattr(library, wanted.name, None)
        if function is not None and len(function.argtypes or ()) == wanted.num_arguments:
            addresses[wanted.name] = address_of(function)
    return addresses


def _check_structs(library: Any) -> None:
    # A check of sizes is not enough: releases have inserted fields without changing a struct's size.
    for layout in _core.struct_layouts():
        expected = [(field.name, field.offset, field.size) for field in layout.fields]
        struct = getattr(library, layout.name)
        fields = [(field[0], getattr(struct, field[0])) for field in struct._fields_]
        found = [(field, place.offset, place.size) for field, place in fields]
        if [*found, ("", 0, ctypes.sizeof(struct))] != expected:
            raise _mismatch(library, f"its {layout.name} is laid out as {found}, and {expected[:-1]} was expected")


def _check_parameters(library: Any) -> None:
    # With LLAMA_CPP_LIB_PATH the bindings load another libllama than their own. If that library's structs have one
    # field more, it would read the user's options from wrong places, and write beyond our struct.
    for name, defaults in _PARAMETERS.items():
        struct = getattr(library, name)
        function = getattr(_bindings._lib, name.replace("_params", "_default_params"))
        written = _core.bytes_returned(address_of(function))
        size, last = ctypes.sizeof(struct), getattr(struct, struct._fields_[-1][0])
        if not last.offset + last.size <= len(written) <= size:
            raise _other_library(library, f"its {name} has {len(written)} bytes, and {size} were expected")
        found = struct.from_buffer_copy(written.ljust(size, b"\0"))
        for field, kind in struct._fields_:
            place = getattr(struct, field)
            raw = written[place.offset : place.offset + place.size]
            is_null = not any(raw)
            is_possible = is_null or not issubclass(kind, _POINTERS)
            is_possible &= is_null or kind is not ctypes.c_bool or raw == b"\1"
            if not is_possible or (field in defaults and getattr(found, field) != defaults[field]):
                raise _other_library(library, f"its {name} has no {field} where it was expected")


def _other_library(library: Any, what: str) -> ImportError:
    loaded = f"with ggml {ggml_version(_bindings._lib)}, {_bindings._lib._name}, is of another release"
    unset = "Unset LLAMA_CPP_LIB_PATH, or have it name a llama.cpp of these bindings' release. "
    return _mismatch(library, f"the llama.cpp {loaded}: {what}", unset if "LLAMA_CPP_LIB_PATH" in os.environ else "")


def _mismatch(library: Any, what: str, remedy: str = "") -> ImportError:
    version = getattr(library, "__version__", "of unknown version")
    return ImportError(f"the installed llama-cpp-python {version} does not fit: {what}. {remedy}{_REMEDY}")


API = load_api()


def has_gpu() -> bool:
    """Whether llama.cpp can compute a part of a model on a GPU or on another machine."""
    if not llama_cpp.llama_supports_gpu_offload() or not llama_cpp.llama_supports_rpc():
        return bool(llama_cpp.llama_supports_gpu_offload())
    # llama_supports_gpu_offload is true for every build with RPC (other machines), so the devices are looked at.
    find = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int)(*ggml_addresses(["ggml_backend_dev_by_type"]).values())
    return any(find(kind) for kind in _GPUS)


def ggml_addresses(names: Iterable[str]) -> dict[str, int]:
    """The addresses of functions of ggml, by name.

    Raises:
        LookupError: ggml has no such function.
    """
    return {name: address_of(function_of_ggml(_bindings._lib, name)) for name in names}


def function_of_cpp(names: Iterable[str], result: Any, *arguments: Any) -> Any:
    """A function that libllama exports under a C++ name. The name depends on the compiler, so several names are tried.

    Raises:
        ValueError: libllama has none of these names.
    """
    for name in names:
        if hasattr(_bindings._lib, name):
            return ctypes.CFUNCTYPE(result, *arguments)(address_of(getattr(_bindings._lib, name)))
    raise ValueError(f"this llama-cpp-python has no function {next(iter(names))}: install a later release")
