"""Arguments of a model's opening that llama.cpp would not survive, looked at before."""

from __future__ import annotations

import contextlib
import operator
import os
from collections.abc import Iterator, Mapping
from typing import Any

import llama_cpp
import numpy as np

from .gguf_header import read_header
from .gguf_values import StoredTensor, architecture_of, read_whole_header
from .header_checks import problems

# Those of llama-server's --cache-type-k: of each name the number, and how many values are one block.
_CACHE_TYPES = {
    "GGML_TYPE_F32": (0, 1),
    "GGML_TYPE_F16": (1, 1),
    "GGML_TYPE_BF16": (30, 1),
    "GGML_TYPE_Q4_0": (2, 32),
    "GGML_TYPE_Q4_1": (3, 32),
    "GGML_TYPE_IQ4_NL": (20, 32),
    "GGML_TYPE_Q5_0": (6, 32),
    "GGML_TYPE_Q5_1": (7, 32),
    "GGML_TYPE_Q8_0": (8, 32),
}
_POSITIONS = "position_embd.weight"  # [n_embd, n_ctx_train]
_N_CTX_STEP = 256  # llama.cpp makes a context of a multiple of it
_BLOCKS = dict(_CACHE_TYPES.values())


def check_opening(path: str, kwargs: Mapping[str, Any]) -> None:
    """Look at what goes on to ``llama_cpp.Llama`` with the model at `path`.

    Raises:
        ValueError: ``type_k`` or ``type_v`` cannot be a KV cache's, of this model; ``lora_path`` is no LoRA adapter; or
            ``kv_overrides`` has a value on which llama.cpp would crash.
        TypeError: a type that is no number, or ``kv_overrides`` that are no dict.
    """
    for name, kind in (("type_k", "key"), ("type_v", "value")):
        if kwargs.get(name) is not None:
            _check_cache_type(path, name, kwargs[name], kind)
    if kwargs.get("lora_path"):
        _check_lora(kwargs["lora_path"])
    overrides = kwargs.get("kv_overrides")
    if overrides is not None:
        if not isinstance(overrides, dict):
            raise TypeError(f"kv_overrides={overrides!r:.100} must be a dict of the file's metadata, by their names")
        _check_overrides(path, overrides)


def n_ctx_with_positions(path: str | os.PathLike[str], n_ctx: int) -> int:
    """How large a context may be of a model that has learned a vector for each position: GPT-2, StarCoder, BERT.

    llama.cpp ends the process at a position that has none, and rounds sizes of contexts up. Other models have no such
    limit.
    """
    table = _tensors(path).get(_POSITIONS)
    if table is None:
        return n_ctx
    most = table.shape[-1]
    whole = most - most % _N_CTX_STEP or most
    return min(n_ctx or whole, whole)


def _tensors(path: str | os.PathLike[str]) -> dict[str, StoredTensor]:
    with contextlib.suppress(ValueError, OSError):
        return read_whole_header(path)[1]
    return {}


def _check_overrides(path: str, overrides: dict[str, Any]) -> None:
    own = {name: value.encode() if isinstance(value, str) else value for name, value in overrides.items()}
    problem = next(iter(problems({**_values(path), **own})), None)
    if problem is not None:
        raise ValueError(f"kv_overrides={overrides!r:.200}: {problem}, on which llama.cpp would crash")


def _values(path: str) -> dict[str, Any]:
    """The file's metadata; none if it is damaged, which is said where it is loaded."""
    with contextlib.suppress(ValueError, OSError):
        return read_whole_header(path)[0]
    return {}


def _check_cache_type(path: str, name: str, value: Any, kind: str) -> None:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r} must be a number, such as llama_cpp.GGML_TYPE_F16") from None
    if number not in _BLOCKS:
        names = ", ".join(f"{name} ({number})" for name, (number, _) in _CACHE_TYPES.items())
        raise ValueError(f"{name}={number} is no type of a KV cache: use one of {names}")
    block = _BLOCKS[number]
    for size in _head_sizes(path, kind) if block > 1 else ():
        if size % block:
            raise ValueError(
                f"{name}={number} stores blocks of {block} values, and this model's heads have {size}: use "
                "llama_cpp.GGML_TYPE_F16"
            )


def _head_sizes(path: str, kind: str) -> Iterator[int]:
    """The sizes of the heads that the file names."""
    values = _values(path)
    prefix = architecture_of(values)
    heads = np.atleast_1d(values.get(f"{prefix}.attention.head_count", 0)).max(initial=0)
    named = values.get(f"{prefix}.attention.{kind}_length")
    yield int(named if named is not None else values.get(f"{prefix}.embedding_length", 0) // heads if heads else 0)
    yield int(values.get(f"{prefix}.attention.{kind}_length_swa", 0))


def _check_lora(lora: Any) -> None:
    try:
        header = read_header(lora)
    except (FileNotFoundError, ValueError) as error:
        raise ValueError(f"lora_path: {error}; give the path of a LoRA adapter in a .gguf file") from None
    if header.kind != "adapter":
        raise ValueError(
            f"lora_path={os.fspath(lora)!r} is a {header.kind or 'file'} and no LoRA adapter: give an adapter's file"
        )


@contextlib.contextmanager
def lora_errors(reasons: list[str]) -> Iterator[None]:
    """Within the block a LoRA adapter that llama.cpp refuses is an error. llama_cpp uses its null pointer otherwise."""

    def check(adapter: Any, *_: Any) -> Any:
        if not adapter:
            why = reasons[0] if reasons else "llama.cpp gave no reason"
            raise ValueError(f"the LoRA adapter of lora_path does not fit this model: {why}")
        return adapter

    function: Any = llama_cpp.llama_adapter_lora_init
    function.errcheck = check
    try:
        yield
    finally:
        del function.errcheck
