"""Opens a model by llama.cpp's own functions."""

from __future__ import annotations

import ctypes
import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

import llama_cpp

from specllama.backend.brief import brief
from specllama.backend.cpu import llama_threads
from specllama.backend.kernel_use import checked_kernels, loading
from specllama.backend.owned import Owned
from specllama.models.contents import kinds_of
from specllama.models.loading import checked_loading, quiet
from specllama.models.opening_checks import check_opening, n_ctx_with_positions

from .context_plan import ContextPlan
from .hidden import Hidden
from .model import Lora, OpenedModel, Settings
from .sizes import check_sizes

_ALL_LAYERS = 0x7FFFFFFF
_YARN = (1.0, 32.0, 1.0)  # llama_cpp.Llama's defaults; llama.cpp by itself would take the values in the model's file


@dataclasses.dataclass(frozen=True)
class Opening:
    """How a model is opened. The names and meanings are those of ``llama_cpp.Llama``'s arguments.

    Attributes:
        n_ctx: the number of tokens that the context has room for.
        n_batch: the most tokens that are decoded at once.
        n_threads: threads for batches of one token; None for half of the cores that the process may use.
        n_threads_batch: threads for larger batches; None for the same number.
        n_gpu_layers: how many layers are on the GPU; -1 for all.
        kernels: ``"auto"`` or ``"off"`` (see `checked_kernels`).
        flash_attn: whether to use flash attention. None: if our kernels compute it (see `ContextPlan`).
        type_k: the type of the cache's keys, one of ggml's types.
        type_v: the type of the cache's values.
        lora_path: a LoRA adapter for the weights.
        lora_scale: the factor of the adapter.
        use_mmap: whether the model's file is mapped into memory, and not read.

    Raises:
        TypeError: a value has another type.
        ValueError: a value is out of range.
    """

    n_ctx: int = 4096
    n_batch: int = 512
    n_threads: int | None = None
    n_threads_batch: int | None = None
    n_gpu_layers: int = 0
    kernels: str | None = None
    flash_attn: bool | None = None
    type_k: int | None = None
    type_v: int | None = None
    lora_path: str | None = None
    lora_scale: float = 1.0
    use_mmap: bool = True

    def __post_init__(self) -> None:
        """Check the values, as the class says."""
        check_sizes(vars(self))
        checked_kernels(self.kernels)
        if self.flash_attn not in (None, True, False):
            raise TypeError(f"flash_attn={brief(self.flash_attn)} must be True, False or None")

    def changed(self, values: Mapping[str, Any]) -> Opening:
        """A copy in which these values, by argument, replace the present ones.

        Raises:
            TypeError: there is no such argument, or a value has another type.
            ValueError: a value is out of range.
        """
        for name in values:
            if name not in vars(self):
                raise TypeError(f"the draft of an Engine has no argument {name}: it has {', '.join(vars(self))}")
        return dataclasses.replace(self, **values)

    def model_params(self) -> Any:
        """``llama_model_params``. Call it within `checked_loading`, which may change llama.cpp's defaults."""
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = _ALL_LAYERS if self.n_gpu_layers == -1 else self.n_gpu_layers
        use_mmap = self.use_mmap and not self.lora_path
        if hasattr(params, "load_mode"):
            mapped, copied = llama_cpp.LLAMA_LOAD_MODE_MMAP, llama_cpp.LLAMA_LOAD_MODE_NONE
            params.load_mode = mapped if use_mmap else copied
        else:  # before 0.3.36
            params.use_mmap = use_mmap
        return params

    def context_params(self) -> Any:
        """``llama_context_params``, without the fields that a `ContextPlan` sets."""
        params: Any = llama_cpp.llama_context_default_params()
        params.n_ctx = self.n_ctx
        params.n_batch = min(self.n_batch, self.n_ctx or self.n_batch)
        params.n_ubatch = min(params.n_batch, 512)
        params.n_threads, _ = llama_threads(self.n_threads)
        params.n_threads_batch = self.n_threads_batch or params.n_threads
        params.yarn_attn_factor, params.yarn_beta_fast, params.yarn_beta_slow = _YARN
        params.no_perf = False
        for name in ("type_k", "type_v"):
            if getattr(self, name) is not None:
                setattr(params, name, getattr(self, name))
        if hasattr(params, "flash_attn_type"):
            on, off = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED, llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
            params.flash_attn_type = on if self.flash_attn else off
        else:  # before 0.3.17
            params.flash_attn = bool(self.flash_attn)
        return params


def open_model(
    path: str | os.PathLike[str],
    opening: Opening,
    *,
    name: str,
    num_snapshots: int = 0,
    num_branches: int = 0,
    has_spare: bool = False,
    hidden: Hidden | None = None,
    like: Settings | None = None,
) -> OpenedModel:
    """Open a model. The caller frees it by its ``close``.

    Args:
        path: a GGUF file.
        opening: the arguments.
        name: ``"target"`` or ``"draft"``, for messages.
        num_snapshots: how many tokens at the end of a batch a recurrent state can be rolled back by.
        num_branches: how many branches of a text can be decoded beside the text.
        has_spare: whether parts of a text's memory are to be copied.
        hidden: the hidden states that the model's contexts show; None for none.
        like: how the context was made whose memory the model's context reads: both must be alike, except for threads.

    Raises:
        ModelNotFoundError, ValueError: the file is missing, or llama.cpp cannot load it.
    """
    file = os.fspath(path)
    check_opening(file, {**vars(opening)})
    is_asked = opening.n_ctx != Opening.n_ctx
    opening = dataclasses.replace(opening, n_ctx=n_ctx_with_positions(file, opening.n_ctx, is_asked=is_asked))
    as_head = hidden is not None and hidden.n_features > 0
    with (
        checked_loading(file, as_head=as_head) as digest,
        loading(checked_kernels(opening.kernels), kinds_of(file)) as use,
        quiet(),
    ):
        model_params, params = opening.model_params(), opening.context_params()
        if like is not None:
            threads = params.n_threads, params.n_threads_batch
            params = like.params_of_another()
            params.n_threads, params.n_threads_batch = threads
        taps = None
        if hidden is not None:
            hidden.load_with(model_params)
            taps = hidden.make_with(params)
        llama_cpp.llama_backend_init()
        plan = ContextPlan(vars(opening), num_snapshots, num_branches, has_spare)
        load = llama_cpp.llama_model_load_from_file
        weights = Owned(llama_cpp.llama_model_free, load, file.encode(), model_params)
        if not weights.address:
            raise ValueError(f"Failed to load model from file: {file}")
        if like is None:
            plan.fill(params, weights.address)
        lora = _adapter(weights.address, opening)
        context = made_context(weights.address, params, weights, taps)
        if not context.address:
            raise ValueError("Failed to create llama_context")
        if hidden is not None:
            hidden.begin(context.address)
        if lora is not None:
            lora.apply(context.address)
    threads = (int(params.n_threads), int(params.n_threads_batch))
    kept = (file, metadata_of(weights.address), model_params, params, int(params.n_batch), *threads, use)
    settings = Settings(*kept, lora=lora, hidden=hidden, weights=digest)
    return OpenedModel(weights.address, context.address, settings, (context, weights), name=name, taps=taps)


def made_context(weights: int, params: Any, *uses: object) -> Owned:
    """Make a context over loaded weights.

    Args:
        weights: the address of the ``llama_model``.
        params: ``llama_context_params``.
        uses: objects that must live as long as the context.

    Returns:
        The owner of the context. Its address is 0 if llama.cpp could not make the context.
    """
    return Owned(llama_cpp.llama_free, llama_cpp.llama_init_from_model, weights, params, uses=uses)


def _adapter(weights: Any, opening: Opening) -> Lora | None:
    """Load the LoRA adapter that each context is to use; None without one. It is freed with the weights."""
    path = opening.lora_path
    if not path:
        return None
    return Lora(path, opening.lora_scale, llama_cpp.llama_adapter_lora_init(weights, os.fspath(path).encode()))


def metadata_of(weights: Any) -> dict[str, str]:
    """A model's metadata: the numbers and texts in its file, without arrays, all as texts.

    Args:
        weights: the address of the ``llama_model``.
    """

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
