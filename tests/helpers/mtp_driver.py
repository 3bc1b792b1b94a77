"""MTP layers, fed by another hand: as llama.cpp's own driver does it (`common/speculative.cpp`), with its functions."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from specllama.backend.libllama import function_of_cpp
from specllama.engine import hidden

_N_CTX = 128
_States = np.ndarray[Any, np.dtype[np.float32]]
_Context = ctypes.c_void_p
_SHOW = function_of_cpp(hidden._SHOW_NEXTN, None, _Context, ctypes.c_bool, ctypes.c_bool)
_CHOOSE_LAYER = function_of_cpp(hidden._CHOOSE_LAYER, None, _Context, ctypes.c_int32)
_STATE = function_of_cpp(
    (
        "llama_get_embeddings_nextn_ith",
        "_Z30llama_get_embeddings_nextn_ithP13llama_contexti",
        "?llama_get_embeddings_nextn_ith@@YAPEAMPEAUllama_context@@H@Z",
    ),
    *(ctypes.POINTER(ctypes.c_float), _Context, ctypes.c_int32),
)


class MtpDriver:
    """A model and its MTP layers, in contexts of their own. Each text is computed anew."""

    def __init__(self, path: Path, num_layers: int) -> None:
        """Loads the model with its MTP layers."""
        model_params = llama_cpp.llama_model_default_params()
        model_params.load_mtp = True
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), model_params)
        self._several = num_layers > 1
        self._n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._width = llama_cpp.llama_model_n_embd_out(self._model)
        self._target, self._layers = self._context(of_layers=False), self._context(of_layers=True)

    def _context(self, *, of_layers: bool) -> Any:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_threads, params.n_threads_batch = _N_CTX, _N_CTX, 1, 1
        params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED  # as of the contexts that it is compared with
        params.ctx_type = hidden._MTP_CONTEXT if of_layers else params.ctx_type
        context = llama_cpp.llama_init_from_model(self._model, params)
        _SHOW(context, True, of_layers)
        return context

    def draft(self, text: Sequence[int], count: int) -> list[int]:
        """The best tokens behind a text: one layer draws all `count`, or each of several the next one."""
        self._decode(self._target, text[:-1], 0)
        states = np.stack([self._state(self._target, i) for i in range(len(text) - 1)])
        before = len(text) - 2  # tokens that each layer has read before the text's last one
        drafted: list[int] = []
        while len(drafted) < count:
            tokens = [*text[1:], *drafted]
            first = 0 if self._several or not drafted else len(tokens) - 1
            if self._several:
                _CHOOSE_LAYER(self._layers, len(drafted))
            if self._several and before:  # they are no part of what the next layer draws from its own states
                self._decode(self._layers, tokens[:before], 0, states[:before])
                first = before
            self._decode(self._layers, tokens[first:], first, states[first:])
            last = len(tokens) - 1 - first
            logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self._layers, last), (self._n_vocab,))
            drafted.append(int(logits.argmax()))
            states = np.concatenate([states, self._state(self._layers, last)[None]])
        return drafted

    def _state(self, context: Any, i: int) -> _States:
        return np.ctypeslib.as_array(_STATE(context, i), (self._width,)).copy()

    def _decode(
        self,
        context: Any,
        tokens: Sequence[int],
        first: int,
        states: _States | None = None,
    ) -> None:
        """`first`: the position of the first token; what the memory holds from there on is forgotten.

        The logits of all tokens are wanted. Some graphs compute the states of all tokens, and `_STATE` then has the
        first ones in place of those of the wanted tokens.
        """
        size, memory = len(tokens), llama_cpp.llama_get_memory(context)
        if first == 0:
            llama_cpp.llama_memory_clear(memory, True)
        llama_cpp.llama_memory_seq_rm(memory, 0, first, -1)
        one = (ctypes.c_int32 * 1)(0)
        inputs = None if states is None else np.ascontiguousarray(states, np.float32)
        batch = llama_cpp.llama_batch(
            n_tokens=size,
            token=(ctypes.c_int32 * size)(*tokens),
            embd=None if inputs is None else inputs.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
            pos=(ctypes.c_int32 * size)(*range(first, first + size)),
            n_seq_id=(ctypes.c_int32 * size)(*[1] * size),
            seq_id=(ctypes.POINTER(ctypes.c_int32) * size)(*[one] * size),
            logits=(ctypes.c_int8 * size)(*[1] * size),
        )
        assert llama_cpp.llama_decode(context, batch) == 0

    def close(self) -> None:
        """Frees all."""
        for context in (self._target, self._layers):
            llama_cpp.llama_free(context)
        llama_cpp.llama_model_free(self._model)
