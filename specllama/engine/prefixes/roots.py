"""The roots of the store: digests of all that a memory is computed with, besides tokens."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from typing import Any

from specllama.backend.prepare import prepare_backend
from specllama.engine.costs import KERNELS_GENERATION, machine
from specllama.engine.model import Model
from specllama.engine.origin import origin_of

_FORM = 1  # add one when entries have another form
_MODEL = ("n_gpu_layers", "split_mode", "main_gpu")
_CONTEXT = ("offload_kqv", "op_offload", "ctx_type")


def root_of(model: Model, n_ctx: int, target: bytes = b"") -> bytes:
    """The root of a model's memory.

    Args:
        model: the model.
        n_ctx: the tokens of the context, on which RoPE depends in some models.
        target: the root of the model whose states this model reads, if it is a head.
    """
    more = b"long" if _is_long(model, n_ctx) else b""
    return hashlib.blake2b(model.once(_digest) + more + target, digest_size=16).digest()


def about(model: Model) -> dict[str, Any]:
    """What a user is told of a root."""
    settings = model.settings
    return {
        "file": os.path.basename(settings.path),
        "model": settings.metadata.get("general.name", ""),
        "kernels": settings.kernels.instruction_set,
    }


def _digest(model: Model) -> bytes:
    settings = model.settings
    computed_with = {
        "form": _FORM,
        **origin_of(model),
        "file": None if settings.weights is not None else _identity(settings.path),
        "kernels": [settings.kernels.instruction_set, KERNELS_GENERATION, prepare_backend().kernels.updates_states],
        "model_params": [getattr(settings.model_params, name, None) for name in _MODEL],
        "context_params": [getattr(settings.context_params, name, None) for name in _CONTEXT],
        "machine": machine(),
    }
    return hashlib.blake2b(json.dumps(computed_with, sort_keys=True, default=str).encode()).digest()


def _identity(path: str) -> list[Any]:
    """What tells a file from others of its name, where the digest of its weights is not known."""
    with contextlib.suppress(OSError):
        found = os.stat(path)
        return [os.path.abspath(path), found.st_size, found.st_mtime_ns]
    return [path]


def _is_long(model: Model, n_ctx: int) -> bool:
    """Whether the context is longer than the one that the model was first trained with: RoPE may differ then."""
    architecture = model.settings.metadata.get("general.architecture", "")
    original = model.settings.metadata.get(f"{architecture}.rope.scaling.original_context_length", "")
    return original.isdigit() and n_ctx > int(original)
