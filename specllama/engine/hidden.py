"""The hidden states that a context shows, and those that a head reads.

llama.cpp calls a callback of the context (``cb_eval``) for each tensor that it computes, whatever the architecture. So
a context shows the tensors that it was made to show. The tensors' names are llama.cpp's.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence
from typing import Any

import llama_cpp

from specllama import _core
from specllama.backend.libllama import function_of_cpp, ggml_addresses

_FUNCTIONS = ("ggml_get_name", "ggml_nbytes", "ggml_backend_tensor_get")
FINAL = -1
"""In place of a layer's number: the final hidden state after the last norm, which the output matrix multiplies."""
FINAL_STATE = "result_norm"
"""llama.cpp's name for the tensor of the final hidden state."""
_MTP_CONTEXT = 1  # LLAMA_CONTEXT_TYPE_MTP
_SHOW_NEXTN = (  # one function: its symbol in C, in C++ by GCC and Clang, and in C++ by MSVC
    "llama_set_embeddings_nextn",
    "_Z26llama_set_embeddings_nextnP13llama_contextbb",
    "?llama_set_embeddings_nextn@@YAXPEAUllama_context@@_N1@Z",
)
_CHOOSE_LAYER = (
    "llama_set_nextn_layer_offset",
    "_Z28llama_set_nextn_layer_offsetP13llama_contexti",
    "?llama_set_nextn_layer_offset@@YAXPEAUllama_context@@H@Z",
)


@dataclasses.dataclass(frozen=True)
class Hidden:
    """The hidden states that the contexts of a model show, and, if the model is a head, the states that it reads.

    Attributes:
        names: the tensors of the graph that are shown. For a head: its own state, then the output of its encoder, if it
            has one.
        n_features: for a head: how many numbers of the target's states the head reads for a token. 0: no head.
        encodes: for a head: whether an encoder computes the head's input from these numbers.
        target: for a head: the address of a context of its target, which has the tensors that the head's file lacks.
        memory: for a head that reads its target's memory, and has none of its own: the decoder of that context.
        nextn: whether the states are for MTP layers. llama.cpp shows such states only when asked (`begin`).
        loads_mtp: whether the MTP layers in the model's file are loaded, too.
        num_layers: the number of MTP layers.
        noise_block: for a head that predicts several tokens in one decode: the block of masks that it reads.
        is_causal: whether a token of such a block sees only the tokens before it.
    """

    names: tuple[str, ...]
    n_features: int = 0
    encodes: bool = False
    target: int | None = None
    memory: _core.Decoder | None = dataclasses.field(default=None, compare=False)
    nextn: bool = False
    loads_mtp: bool = False
    num_layers: int = 1
    noise_block: _core.NoiseBlock | None = dataclasses.field(default=None, compare=False)
    is_causal: bool = True

    def load_with(self, params: Any) -> None:
        """Set in ``llama_model_params`` that the MTP layers are loaded, if `loads_mtp`.

        Raises:
            ValueError: this llama-cpp-python cannot do that.
        """
        if self.loads_mtp:
            _require(params, "load_mtp")
            params.load_mtp = True

    def make_with(self, params: Any) -> _core.Taps | None:
        """Set in ``llama_context_params`` that the context shows these states, and, for a head, reads the target's.

        The returned object must live as long as the context. It is None if no states are shown.

        Raises:
            ValueError: this llama-cpp-python cannot do that.
        """
        taps = self._show_with(params) if self.names else None
        if self.noise_block is not None:
            params.n_ubatch = params.n_batch  # llama.cpp asserts that a block is computed in one micro-batch
        if self.target is not None:
            _require(params, "ctx_other")
            params.ctx_other = self.target
        if self.nextn and self.n_features:
            _require(params, "ctx_type")
            params.ctx_type = _MTP_CONTEXT
        return taps

    def _show_with(self, params: Any) -> _core.Taps:
        try:
            taps = _core.Taps(ggml_addresses(_FUNCTIONS), self.names)
        except LookupError as error:
            raise ValueError(f"this llama-cpp-python cannot show hidden states, which heads read: {error}") from None
        params.cb_eval = ctypes.cast(taps.callback, type(params.cb_eval))
        params.cb_eval_user_data = taps.address
        return taps

    def begin(self, context: Any) -> None:
        """Have a context show states for MTP layers, and set its attention. Called right after the context was made."""
        if self.nextn:
            show = function_of_cpp(_SHOW_NEXTN, None, ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool)
            show(context, True, self.n_features > 0)  # False for a target, which then shows the states of every token
        if self.noise_block is not None:
            llama_cpp.llama_set_causal_attn(context, self.is_causal)

    def width_of(self, weights: Any) -> int:
        """How many numbers of a token each of the shown tensors has.

        The states for MTP layers are wider than the model in DeepSeek V4, whose layers read several residual streams.

        Args:
            weights: the ``llama_model``.
        """
        width = llama_cpp.llama_model_n_embd_out if self.nextn else llama_cpp.llama_model_n_embd
        return int(width(weights))

    @property
    def choose_layer(self) -> int:
        """The address of libllama's function that sets which of several MTP layers computes a batch.

        The address is 0 if there is one layer, or the model is no head.

        Raises:
            ValueError: this llama-cpp-python cannot do that.
        """
        if self.num_layers == 1 or not self.n_features:
            return 0
        choose = function_of_cpp(_CHOOSE_LAYER, None, ctypes.c_void_p, ctypes.c_int32)
        return ctypes.cast(choose, ctypes.c_void_p).value or 0

    @property
    def of_wanted(self) -> bool:
        """Whether a state is computed only for the tokens whose logits are wanted."""
        return FINAL_STATE in self.names


def shown_layers(layers: Sequence[int]) -> Hidden:
    """The inputs of these layers, numbered from 0. `FINAL` (-1) stands for the final state.

    The input of a layer is the output of the layer before.
    """
    return Hidden(tuple(FINAL_STATE if layer == FINAL else f"l_out-{layer - 1}" for layer in layers))


def _require(params: Any, name: str) -> None:
    if not hasattr(params, name):
        raise ValueError("heads need llama-cpp-python 0.3.36 or later: install it, or leave draft_model out")
