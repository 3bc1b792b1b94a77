"""What the kernels' buffer type knows of ggml's insides, against ggml's own headers of the releases it is offered."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from release_source import unpacked
from test_abi_headers import ROOT, VERSIONS, compiler  # noqa: F401

from specllama.backend import kernels

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


def test_the_range_of_releases_is_that_of_the_headers() -> None:
    """Nothing is offered to a release that these tests have not seen."""
    assert tuple(map(int, VERSIONS["lowest"].split("."))) == kernels._FIRST
    if not kernels.is_known_release():
        pytest.skip(f"llama-cpp-python {VERSIONS['newest']} is new: look at its kernels, then raise kernels._LAST")
    assert tuple(map(int, VERSIONS["newest"].split(".")[:3])) <= kernels._LAST
