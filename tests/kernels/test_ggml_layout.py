"""What the kernels' buffer type knows of ggml's insides, against ggml's own headers of the releases it is offered."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
from release_source import unpacked
from test_abi_headers import ROOT, VERSIONS, compiler  # noqa: F401

from specllama import _core, _core_test
from specllama.backend.ggml import CpuBackend

INSIDES = re.compile(r"[^/]+/vendor/llama\.cpp/ggml/(?:include|src)/((?:ggml-cpu/)?[^/]+\.h)")
CLASSES = {
    "tensor_traits": ["~tensor_traits", "work_size", "compute_forward"],
    "extra_buffer_type": ["~extra_buffer_type", "supports_op", "get_tensor_traits"],
}


def headers(version: str) -> Path:
    return unpacked(version, "-ggml", INSIDES, "ggml-cpu/traits.h")


def complaints(command: list[str], folder: Path) -> str:
    """What the compiler says of ggml_check.cpp; empty if it agrees."""
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    places = [f"-I{folder}", f"-I{folder / 'ggml-cpu'}", f"-I{ROOT / 'cpp'}"]
    result = subprocess.run(
        [*command, "-std=c++17", "-fsyntax-only", "-w", *places, str(ROOT / "tests" / "ggml_check.cpp")],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )
    return "" if result.returncode == 0 else result.stderr or f"exit code {result.returncode}"


@pytest.mark.parametrize("release", VERSIONS)
def test_structures_are_laid_out_as_is_known(release: str, compiler: list[str]) -> None:  # noqa: F811
    assert complaints(compiler, headers(VERSIONS[release])) == ""


@pytest.mark.parametrize("release", VERSIONS)
def test_virtual_functions_are_in_the_order_that_is_known(release: str) -> None:
    text = (headers(VERSIONS[release]) / "ggml-cpu" / "traits.h").read_text(encoding="utf-8")
    for name, functions in CLASSES.items():
        body = re.search(rf"class {name} \{{(.*?)\}};", text, re.S)
        assert body, f"there is no class {name}"
        assert re.findall(r"virtual .*?(~?\w+)\(", body[1]) == functions


def test_a_field_that_is_inserted_is_found(compiler: list[str], tmp_path: Path) -> None:  # noqa: F811
    folder = tmp_path / "headers"
    for path in headers(VERSIONS["newest"]).rglob("*.h"):
        copy = folder / path.relative_to(headers(VERSIONS["newest"]))
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    changed, count = re.subn(
        r"(struct ggml_tensor \{\s+enum ggml_type type;)",
        r"\1 void * inserted;",
        (folder / "ggml.h").read_text(encoding="utf-8"),
    )
    assert count == 1
    (folder / "ggml.h").write_text(changed, encoding="utf-8")
    assert "ggml_tensor.buffer lies elsewhere" in complaints(compiler, folder)


needs_known_platform = pytest.mark.skipif(
    not sys.platform.startswith("linux") or platform.machine() not in ("x86_64", "AMD64"),
    reason="the kernels are for Linux on x86-64",
)
BUFFER_TYPE = {  # of each function that asks a buffer type: its result, further arguments, and its place
    2: {"name": 0, "alloc_buffer": 1, "get_alignment": 2, "get_max_size": 3, "get_alloc_size": 4, "is_host": 5, "d": 6},
    3: {"name": 0, "alloc_buffer": 1, "get_alignment": 3, "get_max_size": 4, "get_alloc_size": 5, "is_host": 7, "d": 8},
}
ARGUMENTS: dict[str, list[Any]] = {"alloc_buffer": [ctypes.c_size_t], "get_alloc_size": [ctypes.c_void_p]}


@pytest.fixture
def cpu() -> CpuBackend:
    return CpuBackend(llama_cpp.llama_cpp._lib)


@pytest.fixture
def library(cpu: CpuBackend) -> Callable[..., dict[str, int]]:
    """Addresses of the loaded ggml, but of functions that find a buffer type's functions at other places."""
    kept: list[Any] = []

    def asks(place: int, arguments: list[Any]) -> int:
        kind = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p, *arguments)

        def ask(type_: int, *more: Any) -> int:
            return int(kind(ctypes.cast(type_, ctypes.POINTER(ctypes.c_size_t))[place])(type_, *more))

        kept.append(kind(ask))
        return ctypes.cast(kept[-1], ctypes.c_void_p).value or 0

    def device_at(place: int) -> int:
        kind = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p)
        kept.append(kind(lambda type_: ctypes.cast(type_, ctypes.POINTER(ctypes.c_size_t))[place]))
        return ctypes.cast(kept[-1], ctypes.c_void_p).value or 0

    def addresses(places: Mapping[str, int]) -> dict[str, int]:
        known = {function: cpu.address(function) for function in _core.ggml_functions()}
        asked = {name: place for name, place in places.items() if name != "d"}
        for name, place in asked.items():
            known[f"ggml_backend_buft_{name}"] = asks(place, ARGUMENTS.get(name, []))
        return {**known, "ggml_backend_buft_get_device": device_at(places["d"])}

    return addresses


def version_of(number: int) -> Any:
    """A registry of that version of the interface between ggml and its backends."""
    return (ctypes.c_int * 16)(number)


def refusal_of(addresses: Mapping[str, int], registry: int) -> str:
    """Why a library is refused; empty if it is not."""
    try:
        _core_test.probe_ggml(addresses, registry)
    except RuntimeError as error:
        return str(error)
    return ""


@needs_known_platform
@pytest.mark.parametrize(("version", "known"), [(1, 2), (2, 2), (3, 3)])
def test_a_known_layout_is_found_whatever_library_has_it(
    library: Callable[..., dict[str, int]], version: int, known: int
) -> None:
    made = library(BUFFER_TYPE[known])
    registry = version_of(version)
    # A buffer of the loaded library tells by where its type stands how many functions it has, so only that is asked
    # of it; nothing of ours is offered to it here.
    assert refusal_of(made, ctypes.addressof(registry)) == ""


@needs_known_platform
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("inserted_before", ["alloc_buffer", "get_alignment", "get_alloc_size", "is_host", "d"])
def test_one_more_function_is_refused(
    library: Callable[..., dict[str, int]], version: int, inserted_before: str
) -> None:
    known = BUFFER_TYPE[version]
    made = {name: place + (place >= known[inserted_before]) for name, place in known.items()}
    registry = version_of(version)
    with pytest.raises(RuntimeError, match="a buffer type's functions are elsewhere"):
        _core_test.probe_ggml(library(made), ctypes.addressof(registry))


@needs_known_platform
@pytest.mark.parametrize(("version", "known"), [(2, 3), (3, 2)])
def test_a_layout_of_another_version_is_refused(
    library: Callable[..., dict[str, int]], version: int, known: int
) -> None:
    registry = version_of(version)
    with pytest.raises(RuntimeError, match="a buffer type's functions are elsewhere"):
        _core_test.probe_ggml(library(BUFFER_TYPE[known]), ctypes.addressof(registry))


@needs_known_platform
@pytest.mark.parametrize("version", [0, 4, -1])
def test_a_version_that_is_not_known_is_refused(library: Callable[..., dict[str, int]], version: int) -> None:
    registry = version_of(version)
    with pytest.raises(RuntimeError, match=f"its backends' interface has the version {version}"):
        _core_test.probe_ggml(library(BUFFER_TYPE[2]), ctypes.addressof(registry))


@needs_known_platform
def test_the_kernels_are_offered_to_the_loaded_library(cpu: CpuBackend) -> None:
    version = ctypes.cast(cpu.registry, ctypes.POINTER(ctypes.c_int))[0]
    assert version in (1, 2, 3), "look at this ggml's buffer types, and add its interface to ggml_layout.hpp"
    assert refusal_of({name: cpu.address(name) for name in _core.ggml_functions()}, cpu.registry) == ""
