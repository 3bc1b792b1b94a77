"""Reaches libllama: resolves addresses in the library that llama_cpp has loaded, and checks its ABI.

The extension links to no llama library (a linked one would map a second copy beside llama_cpp's). Nothing else in
Python touches addresses.
"""

from __future__ import annotations

import ctypes
import types
from collections.abc import Iterable, Mapping
from typing import Any

import llama_cpp
from llama_cpp import llama_cpp as _bindings

from specllama import _core

_SUPPORTED = "llama-cpp-python >= 0.3.16, < 0.4"
_REMEDY = f"specllama works with {_SUPPORTED}: pip install --upgrade 'llama-cpp-python>=0.3.16,<0.4' specllama"


def load_api(library: types.ModuleType | Any = llama_cpp) -> _core.LlamaApi:
    """Resolve every libllama function that the extension calls. It does without the optional ones.

    Args:
        library: the module that holds the ctypes functions and structures: ``llama_cpp``.

    Raises:
        ImportError: a function is missing or takes another number of arguments, or a structure is laid out
            differently. Names the installed version and what to do.
    """
    _check_structs(library)
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
        addresses[name] = ctypes.cast(function, ctypes.c_void_p).value or 0
    for wanted in _core.optional_functions():
        function = getattr(library, wanted.name, None)
        if function is not None and len(function.argtypes or ()) == wanted.num_arguments:
            addresses[wanted.name] = ctypes.cast(function, ctypes.c_void_p).value or 0
    return addresses


def _check_structs(library: Any) -> None:
    # A size check is not enough: fields have been inserted without a change of size.
    for layout in _core.struct_layouts():
        expected = [(field.name, field.offset, field.size) for field in layout.fields]
        struct = getattr(library, layout.name)
        fields = [(field[0], getattr(struct, field[0])) for field in struct._fields_]
        found = [(field, place.offset, place.size) for field, place in fields]
        if [*found, ("", 0, ctypes.sizeof(struct))] != expected:
            raise _mismatch(library, f"its {layout.name} is laid out as {found}, and {expected[:-1]} was expected")


def _mismatch(library: Any, what: str) -> ImportError:
    version = getattr(library, "__version__", "of unknown version")
    return ImportError(f"the installed llama-cpp-python {version} does not fit: {what}. {_REMEDY}")


API = load_api()


def ggml_addresses(names: Iterable[str]) -> dict[str, int]:
    """Where functions of ggml are, on which libllama stands.

    Raises:
        LookupError: there is none of a name, or this system does not find it through libllama.
    """
    try:
        return {name: ctypes.cast(getattr(_bindings._lib, name), ctypes.c_void_p).value or 0 for name in names}
    except AttributeError as error:
        raise LookupError(f"it has no function of ggml's ({error})") from None


def function_of_cpp(names: Iterable[str], result: Any, *arguments: Any) -> Any:
    """A function that libllama exports under a name of C++, which depends on the compiler.

    Raises:
        ValueError: it has none of these.
    """
    for name in names:
        if hasattr(_bindings._lib, name):
            address = ctypes.cast(getattr(_bindings._lib, name), ctypes.c_void_p).value
            return ctypes.CFUNCTYPE(result, *arguments)(address or 0)
    raise ValueError(f"this llama-cpp-python has no function {next(iter(names))}: install a later release")
