"""What figures were measured on: all that somebody else needs to compare theirs, and nothing private."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

import llama_cpp

from specllama.backend.cpu import cpu_name
from specllama.backend.prepare import prepare_backend
from specllama.drop_in.base_class import BaseLlama
from specllama.drop_in.lending import lent


def describe_machine(llm: BaseLlama) -> dict[str, Any]:
    """Versions, processor, backend, and for target and draft: name, file, quantisation, sizes, context and threads.

    Args:
        llm: an open Llama; its draft is described if it has one.
    """
    system_info = llama_cpp.llama_print_system_info().decode("utf-8", errors="replace").strip(" |\n")
    draft = getattr(llm, "models", {}).get("draft")  # llama_cpp's own Llama has none
    return {
        "specllama": metadata.version("specllama"),
        "llama_cpp_python": llama_cpp.__version__,
        "python": platform.python_version(),
        "os": platform.platform(),
        "cpu": cpu_name(),
        "logical_cores": os.cpu_count(),
        "backends": backends_of(system_info),
        "gpu_offload": bool(llama_cpp.llama_supports_gpu_offload()),
        "system_info": system_info,
        "backend_notes": list(prepare_backend().notes),
        "target": _describe_model(llm),
        "draft": None if draft is None else _describe_model(draft),
    }


def without_home(text: str) -> str:
    """The text with the user's home folder written as ``~``."""
    home = os.path.expanduser("~").rstrip("/\\")
    return text.replace(home + os.sep, "~" + os.sep) if home else text


def backends_of(system_info: str) -> list[str]:
    """The backends that llama.cpp names: ``CUDA : ARCHS = 890 | CPU : AVX = 1 | ...`` has CUDA and CPU."""
    parts = (part.partition(" : ") for part in system_info.split("|"))
    return [name.strip() for name, separator, _ in parts if separator]


def _describe_model(llama: BaseLlama) -> dict[str, Any]:
    context = llama._ctx.ctx
    return {
        "name": without_home(llama.metadata.get("general.name", "")),
        "file": os.path.basename(llama.model_path),  # a whole path would tell the user's name
        "description": llama._model.desc(),
        "file_type": llama.metadata.get("general.file_type"),
        "size": llama._model.size(),
        "parameters": llama._model.n_params(),
        "n_ctx": llama.n_ctx(),
        "n_gpu_layers": llama.model_params.n_gpu_layers,
        "kernels": str(lent(llama).settings.kernels),
        "batch_invariant": bool(getattr(llama, "batch_invariant", False)),
        "n_threads": llama_cpp.llama_n_threads(context),
        "n_threads_batch": llama_cpp.llama_n_threads_batch(context),
    }
