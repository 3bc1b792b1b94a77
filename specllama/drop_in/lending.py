"""Lends the weights and the context of a ``llama_cpp.Llama`` to an engine."""

from __future__ import annotations

import functools
import threading
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from specllama import _core
from specllama.backend.kernel_use import KernelUse
from specllama.engine.drafts.second_model import borrowed
from specllama.engine.hidden import Hidden
from specllama.engine.model import Lora, Model, Settings, raise_closed
from specllama.engine.opening import metadata_of
from specllama.engine.position import Position
from specllama.models.header_checks import require_sound

from .base_class import BaseLlama
from .closed import is_open
from .view import llama_of

_MODELS: weakref.WeakKeyDictionary[BaseLlama, Model] = weakref.WeakKeyDictionary()
_lock = threading.RLock()


def lent(
    llama: BaseLlama,
    name: str = "target",
    kernels: KernelUse | None = None,
    hidden: Hidden | None = None,
    taps: _core.Taps | None = None,
) -> Model:
    """The model that an open Llama lends. Every call for one Llama returns the same object.

    Args:
        llama: the owner. It frees the weights and the context when it is closed or collected.
        name: ``"target"`` or ``"draft"``, for messages. Only the first call's name counts.
        kernels: how our kernels treat its weights; None if llama_cpp has opened it.
        hidden: the hidden states that its contexts show; None for none.
        taps: reads the hidden states of its own context.

    Raises:
        ClosedError: the Llama is closed.
    """
    llama = llama_of(llama)
    with _lock:
        if not is_open(llama):
            raise_closed()
        model = _MODELS.get(llama)
        if model is None:
            model = _MODELS[llama] = _made(llama, name, kernels, hidden, taps)
        return model


@borrowed.register(BaseLlama)
def _as_draft(llama: BaseLlama) -> Model:
    if not is_open(llama):
        raise _core.ClosedError("the draft Llama is closed: open it again, or give its path as draft_model")
    require_sound(llama.model_path, overrides=llama.kv_overrides)
    return lent(llama, "draft")


def _made(
    llama: BaseLlama, name: str, kernels: KernelUse | None, hidden: Hidden | None, taps: _core.Taps | None
) -> Model:
    more = {} if kernels is None else {"kernels": kernels}
    settings = Settings(
        path=llama.model_path,
        metadata=metadata_of(llama._model.model),
        model_params=llama.model_params,
        context_params=type(llama.context_params).from_buffer_copy(llama.context_params),
        n_batch=llama.n_batch,
        n_threads=llama.n_threads,
        n_threads_batch=llama.n_threads_batch,
        tensor_split=llama.tensor_split,
        lora=_lora(llama),
        overrides=llama.kv_overrides,
        verbose=llama.verbose,
        hidden=hidden,
        **more,
    )
    address, context = int(llama._model.model), int(llama._ctx.ctx)
    model = Model(address, context, settings, name=name, owner=_Owner(llama), taps=taps)
    llama._stack.callback(functools.partial(_free, weakref.ref(llama), model, llama._ctx, llama._stack))
    return model


def _lora(llama: BaseLlama) -> Lora | None:
    adapter = llama._lora_adapter
    return None if adapter is None else Lora(str(llama.lora_path), llama.lora_scale, adapter)


def _free(owner: weakref.ref[BaseLlama], model: Model, context: Any, stack: Any) -> None:
    """Free the model and its context, then the weights. This is the first callback on the Llama's closing stack.

    Raises:
        BusyError: the model is in use. Then the Llama stays open.
    """
    rest = stack.pop_all()
    try:
        model.close(context.close, rest.close)
    except _core.BusyError:
        llama = owner()
        if llama is not None:  # restore the stack: the Llama stays open
            rest.callback(functools.partial(_free, owner, model, context, rest))
            llama._stack = rest
        raise


class _Owner:
    """The Llama as an ``engine.model.Owner``."""

    def __init__(self, llama: BaseLlama) -> None:
        self._llama = weakref.ref(llama)

    def used(self) -> npt.NDArray[np.int32] | None:
        """See ``Owner``. While the engine uses the context, the Llama's ``n_tokens`` is 0."""
        llama = self._llama()
        if llama is None or not llama.n_tokens:
            return None
        position = getattr(llama, "position", None)
        held = position.tokens() if isinstance(position, Position) else llama.input_ids[: llama.n_tokens]
        tokens: npt.NDArray[np.int32] = held.astype(np.int32)  # astype() copies
        llama.n_tokens = 0
        return tokens
