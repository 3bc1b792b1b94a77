"""What T(n) of a model depends on: a curve is of use only where all of this is the same."""

from __future__ import annotations

import functools
import os
from typing import Any

import llama_cpp

from specllama.backend.base_class import BaseLlama
from specllama.backend.cpu import cpu_name
from specllama.backend.kernel_use import use_of
from specllama.backend.prepare import prepare_backend

_KERNELS_GENERATION = 2  # one more when ours become faster: what was measured before says nothing then
_MODEL = ("n_gpu_layers", "split_mode", "main_gpu")
# Of the context, besides threads and batches. Not all releases of llama_cpp have all of them.
_CONTEXT = ("offload_kqv", "op_offload", "flash_attn", "flash_attn_type", "type_k", "type_v")


def cost_key(llama: BaseLlama, role: str) -> dict[str, Any]:
    """Model file, settings and machine, ready for JSON.

    Nothing native of the Llama is used: as a draft it may have been closed.

    Args:
        llama: a target or a draft.
        role: ``"target"`` or ``"draft"``. One model costs less as a draft, which needs logits for one token only.
    """
    model, context = llama.model_params, llama.context_params
    return {
        "role": role,
        "file": os.path.basename(llama.model_path),
        "size": _size(llama.model_path),
        "lora": _lora(llama.lora_path),
        "file_type": llama.metadata.get("general.file_type"),
        "n_threads": llama.n_threads,
        "n_threads_batch": llama.n_threads_batch,
        "n_batch": llama.n_batch,
        "n_ubatch": context.n_ubatch,
        **{name: getattr(model, name) for name in _MODEL},
        "tensor_split": None if llama.tensor_split is None else [float(share) for share in llama.tensor_split],
        **{name: getattr(context, name) for name in _CONTEXT if hasattr(context, name)},
        **_kernels(llama),
        **_machine(),
    }


def _kernels(llama: BaseLlama) -> dict[str, Any]:
    name = use_of(llama).instruction_set
    return {"kernels": f"{name}, {_KERNELS_GENERATION}"} if name else {}


def _size(path: str) -> int | None:
    """Bytes; None if the file is gone, which a loaded model survives."""
    try:
        return os.path.getsize(path)
    except OSError:
        return None


def _lora(path: str | None) -> dict[str, Any] | None:
    """The adapter, of which every layer computes more; None without one. Its scale costs nothing."""
    return {"file": os.path.basename(path), "size": _size(path)} if path else None


@functools.lru_cache(maxsize=1)
def _machine() -> dict[str, Any]:
    notes = prepare_backend().notes
    return {
        # Named only where there are any: what was measured elsewhere before stays known.
        **({"backend_notes": list(notes)} if notes else {}),
        "cpu": cpu_name(),
        "backend": llama_cpp.llama_print_system_info().decode("utf-8", errors="replace"),
        "gpu_offload": bool(llama_cpp.llama_supports_gpu_offload()),
        "llama_cpp_python": llama_cpp.__version__,
    }
