"""The check at import: each way in which an installed llama-cpp-python may not fit, and what the error says."""

from __future__ import annotations

import ctypes
import types
from typing import Any

import llama_cpp
import pytest

from specllama import _core
from specllama.backend import libllama

REMEDY = "llama-cpp-python"
NAMES = [found.name for found in _core.required_functions()]
OPTIONAL = [found.name for found in _core.optional_functions()]
PARAMETERS = ["llama_context_params", "llama_model_params"]
STRUCTS = [found.name for found in _core.struct_layouts()]


def library(**changes: Any) -> types.SimpleNamespace:
    """llama_cpp as far as the guard looks at it, with changes; a change to None removes the name."""
    names = {name: getattr(llama_cpp, name) for name in (*NAMES, *STRUCTS, *PARAMETERS, "__version__")}
    return types.SimpleNamespace(**{name: value for name, value in {**names, **changes}.items() if value is not None})


def struct_of(fields: list[tuple[str, Any]]) -> type[ctypes.Structure]:
    return type("struct", (ctypes.Structure,), {"_fields_": fields})


def test_the_installed_release_fits() -> None:
    assert isinstance(libllama.load_api(library()), _core.LlamaApi)


@pytest.mark.parametrize("name", NAMES)
def test_a_function_is_missing(name: str) -> None:
    with pytest.raises(ImportError, match=rf"no function {name}.*pip install") as caught:
        libllama.load_api(library(**{name: None}))
    assert f"{REMEDY} {llama_cpp.__version__}" in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("change", [1, -1])
def test_a_function_takes_another_number_of_arguments(name: str, change: int) -> None:
    count = {found.name: found.num_arguments for found in _core.required_functions()}[name]
    prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (count + change))
    function = prototype(lambda *_: None)
    with pytest.raises(ImportError, match=f"{name} takes {count + change} arguments, and {count} were expected"):
        libllama.load_api(library(**{name: function}))


@pytest.mark.parametrize("name", OPTIONAL)
def test_an_optional_function_may_be_missing_or_another(name: str) -> None:
    """It is not used then."""
    argument_count = {found.name: found.num_arguments for found in _core.optional_functions()}[name]
    fitting = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * argument_count)(lambda *_: None)
    other = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (argument_count + 1))(lambda *_: None)
    assert name not in libllama._addresses(library())
    assert name not in libllama._addresses(library(**{name: other}))
    assert libllama._addresses(library(**{name: fitting}))[name] != 0


FIELDS = list(llama_cpp.llama_batch._fields_)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param([FIELDS[0], ("all_pos_0", ctypes.c_int32), *FIELDS[1:]], id="a field inserted, size unchanged"),
        pytest.param([*FIELDS, ("extra", ctypes.c_void_p)], id="a field appended"),
        pytest.param(FIELDS[:-1], id="a field removed"),
        pytest.param([FIELDS[0], FIELDS[2], FIELDS[1], *FIELDS[3:]], id="two fields exchanged"),
        pytest.param([("n_tokens", ctypes.c_int64), *FIELDS[1:]], id="a field widened into padding"),
    ],
)
def test_the_batch_is_laid_out_differently(fields: list[tuple[str, Any]]) -> None:
    with pytest.raises(ImportError, match=r"llama_batch is laid out as .* was expected.*pip install"):
        libllama.load_api(library(llama_batch=struct_of(fields)))


@pytest.mark.parametrize("name", STRUCTS)
def test_any_structure_is_laid_out_differently(name: str) -> None:
    fields = [("extra", ctypes.c_void_p), *getattr(llama_cpp, name)._fields_]
    with pytest.raises(ImportError, match=rf"its {name} is laid out as .* was expected.*pip install"):
        libllama.load_api(library(**{name: struct_of(fields)}))


def _changed(name: str, change: str) -> list[tuple[str, Any]]:
    """Fields of bindings to which the loaded library is of another release."""
    fields = list(getattr(llama_cpp, name)._fields_)
    middle = [field for field, *_ in fields].index({"llama_context_params": "type_v"}.get(name, "split_mode")) + 1
    if change == "inserted there":  # as moe_cache_size was
        return [field for field in fields if field[0] != "abort_callback_data" and field[0] != "tensor_split"]
    if change == "inserted here":
        return [*fields[:middle], ("extra", ctypes.c_size_t), *fields[middle:]]
    if change == "appended here":
        return [*fields, ("extra", ctypes.c_void_p)]
    if change == "moved":  # the size stays
        return [*fields[:middle], fields[-1], *fields[middle:-1]]
    return fields[:-1] if name == "llama_context_params" else [field for field in fields if field[1] != ctypes.c_bool]


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("change", ["inserted there", "inserted here", "appended there", "appended here", "moved"])
def test_parameters_of_another_library(name: str, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """LLAMA_CPP_LIB_PATH chose a llama.cpp that is newer, or older, than the bindings."""
    other = library(**{name: struct_of(_changed(name, change))})
    monkeypatch.delenv("LLAMA_CPP_LIB_PATH", raising=False)
    with pytest.raises(ImportError, match=rf"another release: its {name} has .* expected\. specllama works") as caught:
        libllama.load_api(other)
    assert f"{REMEDY} {llama_cpp.__version__}" in str(caught.value)
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", "elsewhere")
    with pytest.raises(ImportError, match=r"expected\. Unset LLAMA_CPP_LIB_PATH"):
        libllama.load_api(other)


@pytest.mark.parametrize(("one", "two"), [("embeddings", "offload_kqv"), ("type_k", "flash_attn_type")])
def test_two_parameters_are_exchanged(one: str, two: str) -> None:
    fields = dict(llama_cpp.llama_context_params._fields_)
    names = [{one: two, two: one}.get(field, field) for field in fields]
    with pytest.raises(ImportError, match=r"has no (embeddings|offload_kqv|type_k) where it was expected"):
        libllama.load_api(library(llama_context_params=struct_of([(name, fields[name]) for name in names])))


def test_a_null_address_is_refused() -> None:
    addresses = dict.fromkeys(NAMES, 1)
    assert _core.LlamaApi(addresses)
    with pytest.raises(_core.AbiError, match=NAMES[0]):
        _core.LlamaApi({**addresses, NAMES[0]: 0})
    with pytest.raises(_core.AbiError, match=NAMES[-1]):
        _core.LlamaApi(dict.fromkeys(NAMES[:-1], 1))
