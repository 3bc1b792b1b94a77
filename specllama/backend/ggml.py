"""Access to ggml, which llama.cpp is built on: the addresses of its public functions, and its CPU backend.

This module imports neither llama_cpp nor the extension, so that a trial can use it which loads libllama by itself.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from pathlib import Path
from typing import Any

_CPU = 0  # GGML_BACKEND_DEVICE_TYPE_CPU


class CpuBackend:
    """The CPU backend of a loaded library.

    Attributes:
        device: the address of the backend's device (``ggml_backend_dev_t``).
        registry: the address of the backend's registry (``ggml_backend_reg_t``). It begins with the version of the
            interface, an int.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        """Args: library: libllama, or another library through which ggml's functions are found.

        Raises:
            LookupError: ggml lacks a function that is needed, or it has no CPU backend.
        """
        self._library = library
        # ggml's list of all backends is not used: asking for it starts every backend, and a GPU's takes seconds.
        if self.has("ggml_backend_cpu_reg"):
            self.registry = int(self.function("ggml_backend_cpu_reg", ctypes.c_void_p)() or 0)
            first = self.function("ggml_backend_reg_dev_get", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
            self.device = int(first(self.registry, 0) or 0)
        else:
            found = self.function("ggml_backend_dev_by_type", ctypes.c_void_p, ctypes.c_int)(_CPU)
            self.device = int(found or 0)
            if found:
                registered = self.function("ggml_backend_dev_backend_reg", ctypes.c_void_p, ctypes.c_void_p)
                self.registry = int(registered(found) or 0)
        if not self.device:
            raise LookupError("ggml has no CPU backend")

    def function(self, name: str, result: Any, *arguments: Any) -> Any:
        """A function of ggml, with the given types of its result and arguments.

        Raises:
            LookupError: there is no function of this name.
        """
        return ctypes.CFUNCTYPE(result, *arguments)(self.address(name))

    def address(self, name: str) -> int:
        """The address of a function of ggml.

        Raises:
            LookupError: there is no function of this name.
        """
        return address_of(function_of_ggml(self._library, name))

    def has(self, name: str) -> bool:
        """Whether ggml has a function of this name."""
        return _found(self._library, name) is not None

    def own_address(self, name: str) -> int:
        """The address of a function of the CPU backend's own, which the registry gives by name.

        Raises:
            LookupError: there is no function of this name.
        """
        find = self.function("ggml_backend_reg_get_proc_address", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
        found = find(self.registry, name.encode("ascii"))
        if not found:
            raise LookupError(f"ggml's CPU backend has no function {name}")
        return int(found)

    def extra_buffer_types(self) -> dict[str, int]:
        """The addresses of the extra buffer types, such as AMX and CPU_REPACK, by name.

        They hold weights in layouts of their own. llama.cpp tries them in this order whenever it loads a model.

        Raises:
            LookupError: ggml lacks a function that is needed.
        """
        offered = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(
            self.own_address("ggml_backend_dev_get_extra_bufts")
        )(self.device)
        name = self.function("ggml_backend_buft_name", ctypes.c_char_p, ctypes.c_void_p)
        found: dict[str, int] = {}
        for address in offered or ():
            if not address:  # the list ends with a null pointer
                break
            found[name(address).decode("utf-8", errors="replace")] = address
        return found


def function_of_ggml(library: ctypes.CDLL, name: str) -> Any:
    """A function of ggml, as ctypes has it.

    Args:
        library: libllama, or another library through which ggml's functions are found.
        name: the function's name.

    Raises:
        LookupError: there is no function of this name.
    """
    found = _found(library, name)
    if found is None:
        raise LookupError(f"ggml has no function {name}")
    return found


def _found(library: ctypes.CDLL, name: str) -> Any:
    """A function of ggml; None if there is none.

    Windows gives only a library's own functions, and not those of the libraries that it is linked to.
    """
    libraries = [library, *(_loaded_beside(library._name) if sys.platform == "win32" else ())]
    return next((getattr(one, name) for one in libraries if hasattr(one, name)), None)


@functools.lru_cache
def _loaded_beside(path: str) -> list[ctypes.CDLL]:
    """The libraries of ggml in the folder of another library, as far as this process has loaded them (Windows)."""
    handle_of = ctypes.WinDLL("kernel32").GetModuleHandleW  # type: ignore[attr-defined,unused-ignore]
    handle_of.restype, handle_of.argtypes = ctypes.c_void_p, [ctypes.c_wchar_p]
    handles = {str(file): handle_of(str(file)) for file in sorted(Path(path).parent.glob("*ggml*.dll"))}
    return [ctypes.CDLL(file, handle=handle) for file, handle in handles.items() if handle]


def ggml_version(library: ctypes.CDLL) -> str:
    """The version of ggml, such as ``0.25.3``.

    Args:
        library: libllama, or another library through which ggml's functions are found.
    """
    version = function_of_ggml(library, "ggml_version")
    version.restype = ctypes.c_char_p
    return bytes(version()).decode("utf-8", errors="replace")


def address_of(function: Any) -> int:
    """The address of a C function that ctypes has found; 0 for a null pointer."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0
