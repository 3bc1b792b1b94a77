"""What the content of a model's memory depends on, besides the tokens."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import llama_cpp
import numpy as np
from llama_cpp import llama_cpp as _bindings

from specllama.backend.ggml import ggml_version
from specllama.models.weights_digest import digest_of_file

from .context_plan import has_flash_attention
from .model import Model

_SETTINGS = (
    *("rope_scaling_type", "rope_freq_base", "rope_freq_scale", "type_k", "type_v"),
    *("yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow", "yarn_orig_ctx"),
)
"""The parameters of a context on which the keys and values in its cache depend.

``n_rs_seq`` is not among them, because only the last recurrent state is saved.
"""
_BASE = 10_000.0  # llama.cpp's base of RoPE if neither the user nor the file gives one


def origin_of(model: Model) -> dict[str, Any]:
    """The weights, library and settings that a model's memory is computed with, as picklable values.

    Control vectors are missing, and so are adapters that were added by llama_cpp's low-level functions: llama.cpp has
    no function that lists them. Call this while the model's path still has the file that was loaded.
    """
    settings = model.settings
    params, weights, adapter = settings.context_params, settings.weights, settings.lora
    address = cast(Any, model.address)
    chosen = {name: getattr(params, name) for name in _SETTINGS if hasattr(params, name)}
    chosen["rope_freq_base"] = params.rope_freq_base or _base_of(settings.metadata)
    chosen["rope_freq_scale"] = params.rope_freq_scale or llama_cpp.llama_model_rope_freq_scale_train(address)
    chosen = {name: max(value, -1) for name, value in chosen.items()}  # any negative number means the file's value
    if hasattr(params, "swa_full") and any(name.endswith(".sliding_window") for name in settings.metadata):
        chosen["swa_full"] = bool(params.swa_full)
    if weights is not None:
        chosen["kv_overrides"] = weights.changed_by(settings.overrides or {}) or None
    return {
        "model": _model(model),
        "weights": None if weights is None else _digest(weights.digest),
        "library": library(),
        "flash_attn": has_flash_attention(params),
        "lora": None if adapter is None else _digest(partial(digest_of_file, adapter.path)),
        "lora_file": None if adapter is None else os.path.basename(adapter.path),
        "settings": {**chosen, "lora_scale": None if adapter is None else float(adapter.scale)},
    }


def library() -> str:
    """The versions of llama-cpp-python and of ggml."""
    # The loaded library may be another one than the bindings were built for (LLAMA_CPP_LIB_PATH).
    return f"llama-cpp-python {llama_cpp.__version__} with ggml {ggml_version(_bindings._lib)}"


def _digest(digest: Callable[[], str]) -> str:
    try:
        return digest()
    except (OSError, ValueError):  # the file was deleted after it was loaded
        return "unknown"


def _base_of(metadata: Mapping[str, str]) -> float:
    said = metadata.get(f"{metadata.get('general.architecture')}.rope.freq_base")
    try:
        return float(np.float32(said)) if said is not None else _BASE
    except ValueError:  # llama.cpp ignores a value that is no number, too
        return _BASE


def _model(model: Model) -> str:
    address, text = cast(Any, model.address), ctypes.create_string_buffer(1024)
    llama_cpp.llama_model_desc(address, cast(Any, text), len(text))
    description = text.value.decode("utf-8", errors="replace")
    num_parameters, size = llama_cpp.llama_model_n_params(address), llama_cpp.llama_model_size(address)
    name = model.settings.metadata.get("general.name", "without a name")
    return f"{name} ({description}, {num_parameters:,} parameters, {size:,} bytes)"
