"""Lends the weights and the context of a ``llama_cpp.Llama`` to an engine."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Sequence
from typing import Any, cast

import llama_cpp
import numpy as np
import numpy.typing as npt

from specllama import _core
from specllama.backend.kernel_use import KernelUse
from specllama.backend.owned import Closable, Once
from specllama.engine.drafts.second_model import borrowed
from specllama.engine.hidden import Hidden
from specllama.engine.model import Lora, Model, Settings, raise_closed
from specllama.engine.opening import metadata_of
from specllama.engine.position import Position
from specllama.models.header_checks import require_sound
from specllama.models.weights_digest import Digest

from .base_class import BaseLlama
from .closed import is_open
from .view import llama_of

_lock = threading.RLock()


def lent(
    llama: BaseLlama,
    name: str = "target",
    kernels: KernelUse | None = None,
    hidden: Hidden | None = None,
    taps: _core.Taps | None = None,
    weights: Digest | None = None,
) -> Model:
    """The model that an open Llama lends. Every call for one Llama returns the same object.

    Args:
        llama: the owner. It frees the weights and the context when it is closed or collected.
        name: ``"target"`` or ``"draft"``, for messages. Only the first call's name counts.
        kernels: how our kernels treat the Llama's weights; None if llama_cpp has opened the Llama.
        hidden: the hidden states that the Llama's contexts give out for a head; None for none.
        taps: the object that reads the hidden states of the Llama's own context.
        weights: the digest of the weights in its file; None if it is unknown.

    Raises:
        ClosedError: the Llama is closed.
    """
    llama = llama_of(llama)
    with _lock:
        if not is_open(llama):
            raise_closed()
        stack: Any = llama._stack
        if not isinstance(stack, _Lent):
            stack = _Lent(_made(llama, name, kernels, hidden, taps, weights), stack)
            # From here on, closing the Llama closes the lent model. Ctrl-C before this line leaves the Llama unchanged.
            cast(Any, llama)._stack = stack
        return cast(Model, stack.model)


@borrowed.register(BaseLlama)
def _as_draft(llama: BaseLlama) -> Model:
    if not is_open(llama):
        raise _core.ClosedError("the draft Llama is closed: open it again, or give its path as draft_model")
    require_sound(llama.model_path, overrides=llama.kv_overrides)
    return lent(llama, "draft")


def _made(
    llama: BaseLlama,
    name: str,
    kernels: KernelUse | None,
    hidden: Hidden | None,
    taps: _core.Taps | None,
    weights: Digest | None,
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
        weights=weights,
        **more,
    )
    address, context = int(llama._model.model), int(llama._ctx.ctx)
    of_context = _freed_once(llama._ctx, "ctx", llama_cpp.llama_free)
    of_weights = _freed_once(llama._model, "model", llama_cpp.llama_model_free, of_context)
    of_batch = _freed_once(llama._batch, "batch", llama_cpp.llama_batch_free)
    frees = of_context, _Rest(llama._stack, of_batch, of_weights)
    return Model(address, context, settings, frees, name=name, owner=_Owner(llama), taps=taps)


def _lora(llama: BaseLlama) -> Lora | None:
    adapter = llama._lora_adapter
    return None if adapter is None else Lora(str(llama.lora_path), llama.lora_scale, adapter)


class _Lent:
    """Closes a Llama that lends its model, in place of llama_cpp's own closing stack.

    Args:
        model: the model that the Llama lends.
        stack: llama_cpp's closing stack. The model closes it when the model is closed.
    """

    def __init__(self, model: Model, stack: contextlib.ExitStack) -> None:
        self.model = model
        self.callback = stack.callback  # llama_cpp's image handlers register here the functions that free their memory

    def close(self) -> None:
        """Free the model's context, then all else that the Llama has when nobody uses the weights any more.

        Raises:
            BusyError: the model is in use. Then the Llama stays open.
        """
        self.model.close()


class _Rest:
    """Frees all that a Llama has but its context, in llama_cpp's order.

    Args:
        stack: llama_cpp's closing stack.
        parts: objects that are on the stack, too. They are closed once more after the stack, because a stack that
            Ctrl-C interrupts may not have freed them.
    """

    def __init__(self, stack: Closable, *parts: Closable) -> None:
        self._parts = stack, *parts

    def close(self) -> None:
        """Free the weights and all else."""
        for part in self._parts:
            part.close()


def _freed_once(holder: Any, name: str, free: Any, *before: Closable) -> _Handle:
    """Have one of llama_cpp's objects free its native memory exactly once, wherever Ctrl-C comes.

    Args:
        holder: llama_cpp's object.
        name: the attribute of `holder` that has the pointer to free.
        free: the function of llama.cpp that frees this pointer.
        before: objects to close before.

    Returns:
        The object that frees the memory. It replaces the closing stack of `holder`.
    """
    if not isinstance(holder._exit_stack, _Handle):
        holder._exit_stack = _Handle(holder, name, free, before)
    return holder._exit_stack


class _Handle:
    """Takes the place of the closing stack of one of llama_cpp's objects. See `_freed_once`."""

    def __init__(self, holder: Any, name: str, free: Any, before: Sequence[Closable]) -> None:
        self._holder = holder
        self._name = name
        self._before = before
        self._once = Once(free, [getattr(holder, name)])
        self._stack = contextlib.ExitStack()
        self.callback = self._stack.callback  # a further context over the weights registers here, to be freed first

    def close(self) -> None:
        """Free the memory. The attribute of llama_cpp's object is None afterwards, as after its own ``close``."""
        for part in (*self._before, self._stack):
            part.close()
        setattr(self._holder, self._name, None)
        self._once.close()


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
