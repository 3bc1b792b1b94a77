"""The hidden states that a context shows, and those that a head takes.

llama.cpp asks a callback of the context about each tensor that it computes (``cb_eval``), whatever the architecture: a
context shows what it was made to show. The tensors' names are llama.cpp's.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence
from typing import Any

import llama_cpp

from specllama import _core
from specllama.backend.libllama import function_of_cpp, ggml_addresses
from specllama.models.block_head_file import Block, BlockHeadFile
from specllama.models.head_file import HeadFile, MtpFile, require_mtp

FileOfHead = HeadFile | MtpFile | BlockHeadFile

_FUNCTIONS = ("ggml_get_name", "ggml_nbytes", "ggml_backend_tensor_get")
FINAL = -1
"""In the place of a layer: what the output matrix multiplies, the final state behind its norm."""
FINAL_STATE = "result_norm"
"""llama.cpp's name for it."""
_NEXTN = ("h_nextn",)
_CANDIDATES = ("dflash2_lattice",)
_MTP_CONTEXT = 1  # LLAMA_CONTEXT_TYPE_MTP
_SHOW_NEXTN = (  # as C, GCC and Clang, and Microsoft's compiler name it
    "llama_set_embeddings_nextn",
    "_Z26llama_set_embeddings_nextnP13llama_contextbb",
    "?llama_set_embeddings_nextn@@YAXPEAUllama_context@@_N1@Z",
)


@dataclasses.dataclass(frozen=True)
class Hidden:
    """What the contexts of a model show.

    Attributes:
        names: tensors of the graph: for a head its own state, then what its encoder makes of the target's, if it has
            one.
        n_features: of a head: how many numbers of the target it takes for a token. 0: it is no head.
        encodes: of a head: they go through an encoder.
        target: of a head: the address of a context of its target, which has what the head's file lacks.
        nextn: llama.cpp has to be asked for them: it is about MTP layers.
        loads_mtp: the model's file has such a layer, which is loaded, too.
        block: of a head that says several tokens in one decode: what it reads for that.
    """

    names: tuple[str, ...]
    n_features: int = 0
    encodes: bool = False
    target: int | None = None
    nextn: bool = False
    loads_mtp: bool = False
    block: Block | None = None

    def load_with(self, params: Any) -> None:
        """Has the model that will be loaded with these ``llama_model_params`` have what is needed.

        Raises:
            ValueError: this llama-cpp-python cannot.
        """
        if self.loads_mtp:
            _require(params, "load_mtp")
            params.load_mtp = True

    def make_with(self, params: Any) -> _core.Taps | None:
        """Has the context that will be made with these ``llama_context_params`` show them, and take what it takes.

        What is returned must live as long as the context. It is None where there is nothing to show.

        Raises:
            ValueError: this llama-cpp-python cannot.
        """
        taps = self._show_with(params) if self.names else None
        if self.block is not None:
            params.n_ubatch = params.n_batch  # llama.cpp asserts that a block is computed at once
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
        """Has a context compute them, once it is made."""
        if self.nextn:
            show = function_of_cpp(_SHOW_NEXTN, None, ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool)
            show(context, True, self.n_features > 0)  # of a target: of every token
        if self.block is not None:
            llama_cpp.llama_set_causal_attn(context, self.block.is_causal)

    @property
    def of_wanted(self) -> bool:
        """Whether some of it is computed of those tokens alone whose logits are wanted."""
        return FINAL_STATE in self.names

    @property
    def noise_block(self) -> _core.NoiseBlock | None:
        """The native side of the block."""
        block = self.block
        if block is None:
            return None
        return _core.NoiseBlock(block.size, block.mask, block.first, block.is_whole, block.num_candidates)


def shown_to(head: FileOfHead) -> Hidden:
    """What a target must show for a head: what enters a layer is what leaves the one before."""
    if isinstance(head, MtpFile):
        return Hidden(_NEXTN, nextn=True)
    return shown_layers(head.layers)


def shown_layers(layers: Sequence[int]) -> Hidden:
    """What enters these layers, numbered from 0; `FINAL`: see there."""
    return Hidden(tuple(FINAL_STATE if layer == FINAL else f"l_out-{layer - 1}" for layer in layers))


def of_head(head: FileOfHead, target: int) -> Hidden:
    """What a head shows and takes, over a target of which this is the context's address."""
    if isinstance(head, MtpFile):
        return of_mtp(head.hidden_size)
    if isinstance(head, BlockHeadFile):
        names = _CANDIDATES if head.block.num_candidates else ()
        return Hidden(names, len(head.layers) * head.hidden_size, target=target, block=head.block)
    return Hidden(("eagle3_prenorm-0", "fc_out"), len(head.layers) * head.hidden_size, True, target)


def shown_to_mtp(target: str) -> Hidden:
    """What a target must show for the MTP layer in its own file.

    Raises:
        ValueError: it has none that llama.cpp can run.
    """
    require_mtp(target)
    return Hidden(_NEXTN, nextn=True, loads_mtp=True)


def of_mtp(n_embd: int) -> Hidden:
    """What MTP layers show and take."""
    return Hidden(_NEXTN, n_embd, nextn=True, loads_mtp=True)


def _require(params: Any, name: str) -> None:
    if not hasattr(params, name):
        raise ValueError("heads need llama-cpp-python 0.3.36 or later: install it, or leave draft_model out")
