"""Describes the machine of measurements: everything that others need to compare figures, and nothing private."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import TYPE_CHECKING, Any

import llama_cpp

from specllama.backend.cpu import cpu_name
from specllama.backend.prepare import prepare_backend

if TYPE_CHECKING:
    from specllama import Llama
    from specllama.engine import Model


def describe_machine(llm: Llama) -> dict[str, Any]:
    """Versions, processor, backend, and for target and draft: name, file, quantisation, sizes, context and threads.

    Args:
        llm: an open Llama; its draft is described if it has one.
    """
    system_info = llama_cpp.llama_print_system_info().decode("utf-8", errors="replace").strip(" |\n")
    models = llm.engine.models
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
        "target": _described(models["target"]),
        "draft": _described(models["draft"]) if "draft" in models else None,
    }


def without_home(text: str) -> str:
    """The text with the user's home folder written as ``~``."""
    home = os.path.expanduser("~").rstrip("/\\")
    return text.replace(home + os.sep, "~" + os.sep) if home else text


def backends_of(system_info: str) -> list[str]:
    """The backends that llama.cpp names: ``CUDA : ARCHS = 890 | CPU : AVX = 1 | ...`` has CUDA and CPU."""
    parts = (part.partition(" : ") for part in system_info.split("|"))
    return [name.strip() for name, separator, _ in parts if separator]


def _described(model: Model) -> dict[str, Any]:
    known = model.describe()
    return {**known, "name": without_home(known["name"])}
