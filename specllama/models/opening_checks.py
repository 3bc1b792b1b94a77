"""Checks the arguments for opening a model. With some values llama.cpp would end the process."""

from __future__ import annotations

import contextlib
import math
import numbers
import operator
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import llama_cpp
import numpy as np

from specllama.backend.brief import brief
from specllama.warn import warn

from .cache_types import CACHE_TYPES, values_of_block
from .gguf_header import read_header
from .gguf_values import StoredTensor, UnusableFileError, architecture_of, read_whole_header
from .header_checks import overridden, problems, whole_number

_POSITIONS = "position_embd.weight"  # [n_embd, n_ctx_train]
_N_CTX_STEP = 256  # llama.cpp rounds the size of a context up to a multiple of this
_REAL = (
    *("rope_freq_base", "rope_freq_scale", "lora_scale"),
    *("yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow"),
)
_NEVER_NEGATIVE = ("rope_freq_base", "rope_freq_scale")
_KINDS: dict[type, type] = {bool: bool, int: int, float: float, bytes: str}
"""For each Python type of a value in the file's metadata, the type that ``kv_overrides`` must give."""
_ROOM_OF_OVERRIDE = 128  # llama.cpp's bytes for a name or a text, with a zero byte at the end


def check_opening(path: str, kwargs: dict[str, Any]) -> None:
    """Check arguments for ``llama_cpp.Llama``. A ``lora_path`` is replaced by a string.

    Args:
        path: the model's file.
        kwargs: the arguments, which may be changed.

    Raises:
        TypeError: a number is expected, or ``kv_overrides`` is no dict of numbers and texts.
        ValueError: ``type_k`` or ``type_v`` is impossible for a KV cache, for this model, or without ``flash_attn``;
            ``lora_path`` is no LoRA adapter; llama.cpp would crash with a value of ``kv_overrides``; or the
            arguments ask for scores, and the model has no head for ranking.
    """
    overrides = kwargs.get("kv_overrides")
    if overrides is not None:
        _check_overrides(path, overrides)
    for name, kind in (("type_k", "key"), ("type_v", "value")):
        if kwargs.get(name) is not None:
            _check_cache_type(path, name, kwargs, kind)
    _check_numbers(kwargs)
    if kwargs.get("embedding"):
        _check_ranking(path, kwargs)
    if kwargs.get("n_ctx") == 0 and not _n_ctx_train(path, overrides):
        raise ValueError(
            "n_ctx=0 takes the n_ctx that the model was trained with, and its file says none: give n_ctx (-c)"
        )
    if kwargs.get("lora_path"):
        if kwargs.get("vocab_only"):
            raise ValueError("lora_path is for a model with its weights: leave it out with vocab_only=True")
        kwargs["lora_path"] = _checked_lora(kwargs["lora_path"])


def _check_ranking(path: str, kwargs: Mapping[str, Any]) -> None:
    """Check that a model has a ranking head if it is to rank. Else llama.cpp takes scores from another text's state."""
    values, tensors = _header(path)
    values = overridden(values, kwargs.get("kv_overrides"))
    pooling = kwargs.get("pooling_type", llama_cpp.LLAMA_POOLING_TYPE_UNSPECIFIED)
    if pooling == llama_cpp.LLAMA_POOLING_TYPE_UNSPECIFIED:
        pooling = values.get(f"{architecture_of(values)}.pooling_type")
    layer = tensors.get("cls.weight")
    has_head = "cls.output.weight" in tensors or (layer is not None and layer.size == layer.shape[0])
    if pooling == llama_cpp.LLAMA_POOLING_TYPE_RANK and not has_head:
        raise ValueError(
            f"pooling_type={int(pooling)} gives scores, and {path} has no head that ranks: take a reranker, or another "
            "pooling_type"
        )


def n_ctx_with_positions(path: str | os.PathLike[str], n_ctx: int, *, is_asked: bool = False) -> int:
    """Limit the size of a context for a model with a learned vector for each position: GPT-2, StarCoder, BERT.

    llama.cpp ends the process at a position without a vector, and rounds sizes of contexts up. For all other models the
    size is returned unchanged.

    Args:
        path: the model's file.
        n_ctx: the wanted size in tokens; 0 for the largest.
        is_asked: whether the user has asked for this size. If so, a warning says that it becomes smaller.
    """
    table = _header(path)[1].get(_POSITIONS)
    if table is None:
        return n_ctx
    most = table.shape[-1]
    whole = most - most % _N_CTX_STEP or most
    if is_asked and n_ctx > whole:
        warn(f"n_ctx={n_ctx} becomes {whole}: {os.path.basename(path)} has learned {most} positions, and no more")
    return min(n_ctx or whole, whole)


def _header(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    """The file's metadata and tensors; empty if the file is damaged: loading it will report that."""
    with contextlib.suppress(UnusableFileError, OSError):
        return read_whole_header(path)
    return {}, {}


def _check_overrides(path: str, overrides: Any) -> None:
    if not isinstance(overrides, dict):
        raise TypeError(f"kv_overrides={overrides!r:.100} must be a dict of the file's metadata, by their names")
    for name, value in overrides.items():
        if not isinstance(name, str) or not isinstance(value, (bool, int, float, str)):
            raise TypeError(
                f"kv_overrides has {name!r:.60}: {value!r:.100}: a name must be a text, and a value a number or a text"
            )
        for text in (name, value):
            if isinstance(text, str) and (len(text.encode()) >= _ROOM_OF_OVERRIDE or "\0" in text):
                raise ValueError(
                    f"kv_overrides has {text!r:.60}, which llama.cpp cannot take: a name or a text has at most "
                    f"{_ROOM_OF_OVERRIDE - 1} bytes, and no zero among them"
                )
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError(f"kv_overrides has {name!r:.60}: {value}, which no integer of 64 bits holds")
    values = _header(path)[0]
    for name, value in overrides.items():
        kind, known_kind = type(value), _KINDS.get(type(values.get(name)), type(value))
        if kind is not known_kind:  # llama.cpp would ignore such an override
            raise TypeError(
                f"kv_overrides has {name!r:.60}: {value!r:.100}, and the file's own value is of the type "
                f"{known_kind.__name__}"
            )
    known = {*problems(values)}  # faults of the file itself are reported when it is loaded
    problem = next((problem for problem in problems(overridden(values, overrides)) if problem not in known), None)
    if problem is not None:
        raise ValueError(f"kv_overrides={overrides!r:.200}: {problem}, on which llama.cpp would crash")


def override_array(overrides: Mapping[str, Any]) -> Any:
    """``kv_overrides`` as llama.cpp takes them, made as in llama_cpp. The array must live until the model is loaded."""
    array = (llama_cpp.llama_model_kv_override * (len(overrides) + 1))()
    for one, (name, value) in zip(array, overrides.items(), strict=False):
        one.key = name.encode()
        if isinstance(value, bool):
            one.tag, one.value.val_bool = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_BOOL, value
        elif isinstance(value, int):
            one.tag, one.value.val_i64 = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_INT, value
        elif isinstance(value, float):
            one.tag, one.value.val_f64 = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_FLOAT, value
        else:
            one.tag, one.value.val_str = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_STR, value.encode()
    return array


def _check_cache_type(path: str, name: str, kwargs: Mapping[str, Any], kind: str) -> None:
    value = kwargs[name]
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={brief(value)} must be a number, such as llama_cpp.GGML_TYPE_F16") from None
    if number not in dict(CACHE_TYPES.values()):
        names = ", ".join(f"GGML_TYPE_{name} ({number})" for name, (number, _) in CACHE_TYPES.items())
        raise ValueError(f"{name}={brief(number)} is no type of a KV cache: use one of {names}")
    block = values_of_block(number)
    if block > 1 and kind == "value" and kwargs.get("flash_attn") in (False, 0):
        raise ValueError(
            f"{name}={number} stores blocks of {block} values, which llama.cpp can with flash attention only: leave "
            "flash_attn out"
        )
    for size in _head_sizes(path, kwargs.get("kv_overrides"), kind) if block > 1 else ():
        if size % block:
            raise ValueError(
                f"{name}={number} stores blocks of {block} values, and this model's heads have {size}: use "
                "llama_cpp.GGML_TYPE_F16"
            )


def _head_sizes(path: str, overrides: Mapping[str, Any] | None, kind: str) -> Iterator[int]:
    """The sizes of the model's attention heads, for keys or for values."""
    values = overridden(_header(path)[0], overrides)
    heads = whole_number(values, "attention.head_count")
    yield whole_number(values, f"attention.{kind}_length") or whole_number(values, "embedding_length") // max(1, heads)
    yield whole_number(values, f"attention.{kind}_length_swa")


def _check_numbers(kwargs: Mapping[str, Any]) -> None:
    for name in _REAL:
        value: Any = kwargs.get(name, 0.0)
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise TypeError(f"{name}={brief(value)} must be a number")
        size: Any = abs(value)
        if not size <= sys.float_info.max or (name in _NEVER_NEGATIVE and value < 0):
            raise ValueError(f"{name}={brief(value)} must be a number{' from 0 up' if name in _NEVER_NEGATIVE else ''}")
    for share in kwargs.get("tensor_split") or ():
        if not isinstance(share, (int, float, np.floating)) or not 0 <= share < math.inf:
            raise ValueError(f"tensor_split={kwargs['tensor_split']!r:.100} must be the share of each GPU, from 0 up")


def _n_ctx_train(path: str, overrides: Mapping[str, Any] | None) -> Any:
    values = overridden(_header(path)[0], overrides)
    # llama.cpp refuses a file without a context_length.
    return values.get(f"{architecture_of(values)}.context_length", True)


def _checked_lora(lora: Any) -> str:
    if not isinstance(lora, (str, os.PathLike)):
        raise TypeError(f"lora_path={lora!r:.100} must be the path of a LoRA adapter")
    try:
        header = read_header(lora)
    except (UnusableFileError, OSError) as error:
        raise ValueError(f"lora_path: {error}; give the path of a LoRA adapter in a .gguf file, complete") from None
    if header.kind != "adapter":
        raise ValueError(
            f"lora_path={os.fspath(lora)!r} is a {header.kind or 'file'} and no LoRA adapter: give an adapter's file"
        )
    return os.fsdecode(lora)


@contextlib.contextmanager
def lora_errors(reasons: list[str]) -> Iterator[None]:
    """A context manager: raise an error if llama.cpp refuses a LoRA adapter. llama_cpp would go on with a null pointer.

    Args:
        reasons: llama.cpp's error messages, which are read when the error is raised.

    Raises:
        ValueError: llama.cpp has refused the adapter.
    """

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
