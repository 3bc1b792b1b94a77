"""Opens a model by llama.cpp's own functions."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable
from typing import Any

import llama_cpp

from specllama.backend.cpu import llama_threads
from specllama.backend.kernel_use import checked_kernels, loading
from specllama.models.loading import explained, quiet

from .hidden import Hidden
from .model import Model, Settings

_MOST_SNAPSHOTS = 8  # each takes as much memory as the state; drafts that are longer are rolled back by a copy


def num_snapshots_of(wanted: int, params: Any) -> int:
    """How many states of a recurrent model a context keeps, to forget as many tokens of a batch.

    llama.cpp ends the process unless a batch has room for more tokens than there are states to keep.
    """
    return max(0, min(wanted, _MOST_SNAPSHOTS, int(params.n_ubatch) - 2))


def open_model(
    path: str | os.PathLike[str],
    *,
    name: str,
    n_ctx: int,
    n_batch: int,
    n_threads: int | None,
    n_gpu_layers: int,
    kernels: str | None,
    num_snapshots: int = 0,
    hidden: Hidden | None = None,
) -> tuple[Model, Callable[[], None]]:
    """A model, and what closes it.

    Args:
        path: a GGUF file.
        name: ``"target"`` or ``"draft"``, for messages.
        n_ctx: tokens of the context.
        n_batch: the most that are decoded at once.
        n_threads: None for half of the cores that the process may use.
        n_gpu_layers: how many layers are on the GPU; -1 for all.
        kernels: see `checked_kernels`.
        num_snapshots: how many tokens of a batch a recurrent model may have to forget again.
        hidden: the hidden states that its contexts show.

    Raises:
        ModelNotFoundError, ValueError: no loadable model.
    """
    file = os.fspath(path)
    threads, _ = llama_threads(n_threads)
    as_head = hidden is not None and hidden.n_features > 0
    with contextlib.ExitStack() as opened:
        with explained(file, as_head=as_head), loading(checked_kernels(kernels)) as use, quiet():
            model_params = llama_cpp.llama_model_default_params()  # what explained() has prepared may be in them
            model_params.n_gpu_layers = 0x7FFFFFFF if n_gpu_layers == -1 else n_gpu_layers
            params: Any = llama_cpp.llama_context_default_params()
            params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, n_batch, min(n_batch, 512)
            params.n_threads = params.n_threads_batch = threads
            if hasattr(params, "n_rs_seq"):
                params.n_rs_seq = num_snapshots_of(num_snapshots, params)
            taps = None
            if hidden is not None:
                hidden.load_with(model_params)
                taps = hidden.make_with(params)
            llama_cpp.llama_backend_init()
            weights = llama_cpp.llama_model_load_from_file(file.encode(), model_params)
            if not weights:
                raise ValueError(f"Failed to load model from file: {file}")
            opened.callback(llama_cpp.llama_model_free, weights)
            context = llama_cpp.llama_init_from_model(weights, params)
            if not context:
                raise ValueError("Failed to create llama_context")
            opened.callback(llama_cpp.llama_free, context)
            if hidden is not None:
                hidden.begin(context)
        kept = (file, _metadata(weights), model_params, params, n_batch, threads, threads, use)
        model = Model(int(weights), int(context), Settings(*kept, hidden=hidden), name=name, taps=taps)
        opened.pop_all()
    return model, lambda: model.close(
        lambda: llama_cpp.llama_free(context), lambda: llama_cpp.llama_model_free(weights)
    )


def _metadata(weights: Any) -> dict[str, str]:
    def read(function: Callable[..., int], index: int) -> str:
        size = 256
        while True:
            room = ctypes.create_string_buffer(size)
            needed = function(weights, index, room, size)
            if needed < size:
                return room.value.decode("utf-8", errors="replace")
            size = needed + 1

    return {
        read(llama_cpp.llama_model_meta_key_by_index, i): read(llama_cpp.llama_model_meta_val_str_by_index, i)
        for i in range(llama_cpp.llama_model_meta_count(weights))
    }
