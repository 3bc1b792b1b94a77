"""The C++ declarations of libllama, against the real llama.h of the lowest and the newest supported release."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import pytest
from needed import MODELS, missing
from release_source import unpacked

from specllama import _core

ROOT = Path(__file__).resolve().parents[2]
HEADER = re.compile(r"[^/]+/vendor/llama\.cpp/(?:include|ggml/include)/([^/]+\.h)")


def _lowest() -> str:
    found = re.search(r'"llama-cpp-python>=([0-9.]+)', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert found, "pyproject.toml gives no lower bound of llama-cpp-python"
    return found[1]


# The newest is the installed one: a fresh environment gets the newest release of the supported range.
VERSIONS = {"lowest": _lowest(), "newest": metadata.version("llama-cpp-python")}


def _installed_headers(version: str) -> Path | None:
    """The folder of headers that the installed llama-cpp-python was built with, if it is that version and has them."""
    if version != metadata.version("llama-cpp-python"):
        return None
    for file in metadata.files("llama-cpp-python") or []:
        path = Path(str(file.locate()))
        if path.name == "llama.h" and path.is_file():
            return path.parent
    return None


def _headers(version: str) -> Path:
    """A folder with llama.h and ggml's headers of that release; downloaded once, then kept in the cache."""
    return _installed_headers(version) or unpacked(version, "", HEADER, "llama.h")


@pytest.fixture(scope="module")
def compiler() -> list[str]:
    """The command of a compiler that understands GCC's options."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    for name in names:
        command = name.split()
        if shutil.which(command[0]):
            return command
    return missing(f"no C++ compiler to check the headers with (looked for {', '.join(names)})", MODELS)


def _compile(compiler: list[str], headers: Path) -> str:
    """What the compiler says of abi_check.cpp with these headers; empty if it agrees."""
    command = [*compiler, "-std=c++17", "-fsyntax-only", f"-I{headers}", f"-I{ROOT / 'cpp'}"]
    declarations = (headers / "llama.h").read_text(encoding="utf-8")
    for found in _core.optional_functions():
        is_there = re.search(rf"LLAMA_API .*{found.name}[ ]*[(]", declarations) is not None
        command.append(f"-DHAS_{found.name}={int(is_there)}")
    # The run time that a sanitizer run preloads into Python is not for the compiler.
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    result = subprocess.run(
        [*command, str(ROOT / "tests" / "abi_check.cpp")], capture_output=True, text=True, env=environment, timeout=120
    )
    return "" if result.returncode == 0 else result.stderr or f"exit code {result.returncode}"


@pytest.mark.parametrize("release", VERSIONS)
def test_declarations_are_those_of_llama_h(release: str, compiler: list[str]) -> None:
    assert _compile(compiler, _headers(VERSIONS[release])) == ""


@pytest.mark.parametrize(
    ("pattern", "replacement", "complaint"),
    [
        pytest.param(r"int32_t( llama_decode\()", r"int64_t\1", "llama_decode has another type", id="return type"),
        pytest.param(
            r"(llama_get_logits_ith\(struct llama_context \* ctx), int32_t i",
            r"\1, int64_t i",
            "llama_get_logits_ith has another type",
            id="argument type",
        ),
        pytest.param(
            r"(llama_vocab_n_tokens\(const struct llama_vocab \* vocab)",
            r"\1, int extra",
            "llama_vocab_n_tokens has another type",
            id="argument count",
        ),
        pytest.param(
            r"(llama_state_seq_get_size_ext\(\s*struct llama_context \* ctx,\s*)llama_seq_id",
            r"\1int64_t",
            "llama_state_seq_get_size_ext has another type",
            id="an optional one's argument type",
        ),
        pytest.param(r"int32_t llama_model_n_swa", "int32_t llama_model_swa", "llama_model_n_swa", id="removed"),
        pytest.param(r"(float +\* +embd;)", r"double * embd;", r"llama_batch.embd has another type", id="field type"),
        pytest.param(r"(float +\* +embd;)", r"int32_t extra; \1", r"llama_batch.embd lies elsewhere", id="field added"),
        pytest.param(
            r"(int8_t +\* +logits;)", r"\1 int32_t extra;", r"llama_batch has another size", id="field at the end"
        ),
    ],
)
def test_each_kind_of_difference_is_found(
    pattern: str, replacement: str, complaint: str, compiler: list[str], tmp_path: Path
) -> None:
    headers = tmp_path / "headers"
    shutil.copytree(_headers(VERSIONS["newest"]), headers)
    text = (headers / "llama.h").read_text(encoding="utf-8")
    changed, count = re.subn(pattern, replacement, text)
    assert count == 1, f"llama.h has {count} places like {pattern}"
    (headers / "llama.h").write_text(changed, encoding="utf-8")
    assert complaint in _compile(compiler, headers)
