"""Saved states: whether one is whole, and of this Llama's model. llama.cpp looks at neither."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, NoReturn

import llama_cpp
import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp as _bindings

from specllama._core import FIRST_EMBEDDING
from specllama.backend.ggml import ggml_version
from specllama.engine.model import token_ids
from specllama.engine.position import numbers_of_embeddings

from .base_class import BaseLlama
from .context_params import has_flash_attention

_MARK = "specllama_origin"  # an attribute of the states that we save; llama_cpp's own have none


class StateError(ValueError, RuntimeError):
    """A saved state cannot be loaded. A RuntimeError too, because that is what llama_cpp.Llama raises."""


def marked(llama: BaseLlama, state: llama_cpp.LlamaState) -> llama_cpp.LlamaState:
    """The state with what is needed to recognise it later, in a file, too."""
    origin = {"model": _model(llama), "library": _library(), "checksum": _checksum(state)}
    setattr(state, _MARK, {**origin, "flash_attn": has_flash_attention(llama.context_params)})
    return state


def fitted(llama: BaseLlama, state: Any) -> llama_cpp.LlamaState:
    """A saved state for a Llama that may have another size, and keeps no logits.

    Raises:
        StateError: it is too long, damaged, of another model or library, or lies otherwise in memory.
        TypeError: no state.
    """
    if not isinstance(state, llama_cpp.LlamaState):
        raise TypeError(f"state={state!r:.100} must be a llama_cpp.LlamaState: take one from save_state()")
    n_tokens, size = state.n_tokens, len(llama.input_ids)
    if n_tokens > size:
        raise StateError(
            f"the state holds {n_tokens} tokens and n_ctx is {size}: create the Llama with the n_ctx of the one that "
            "saved it"
        )
    if not 0 <= n_tokens <= len(state.input_ids) or len(state.llama_state) != state.llama_state_size:
        raise StateError("the state is damaged: it is shorter than it says; save it anew")
    input_ids = np.zeros_like(llama.input_ids)
    try:
        input_ids[:n_tokens] = _known(np.asarray(state.input_ids[:n_tokens]), llama.n_vocab())
    except ValueError as error:
        raise StateError(f"{error}; the state is damaged, or of another model") from None
    origin = getattr(state, _MARK, None)
    if origin is not None and origin["model"] != _model(llama):
        raise StateError(f"the state is of the model {origin['model']}, and this Llama has {_model(llama)}: load that")
    # llama.cpp looks at no version in it: it takes the bytes for whatever stands there in its own states.
    if origin is not None and origin["library"] != _library():
        raise StateError(
            f"the state was saved by {origin['library']}, and this is {_library()}: load it with the library that "
            "saved it, or save it anew"
        )
    own = has_flash_attention(llama.context_params)
    if origin is not None and origin.get("flash_attn", own) != own:
        raise StateError(
            f"the state was saved with flash_attn={origin['flash_attn']}, and lies otherwise in memory: create the "
            f"Llama with flash_attn={origin['flash_attn']}"
        )
    if origin is not None and origin["checksum"] != _checksum(state):
        raise StateError("the state is damaged: its checksum is another one than when it was saved; save it anew")
    return llama_cpp.LlamaState(
        input_ids=input_ids,
        scores=llama.scores,
        n_tokens=n_tokens,
        llama_state=state.llama_state,
        llama_state_size=state.llama_state_size,
        seed=state.seed,
    )


def _known(ids: npt.NDArray[Any], n_vocab: int) -> npt.NDArray[np.int32]:
    """The tokens of a state. What is none, an image, is in the memory with it, and nothing that this process knows."""
    is_embedding = ids <= FIRST_EMBEDDING
    known = token_ids(np.where(is_embedding, 0, ids), "the state's tokens", n_vocab)
    known[is_embedding] = numbers_of_embeddings(int(is_embedding.sum()))
    return known


def require_loaded(llama: BaseLlama, n_tokens: int) -> None:
    """Raises StateError unless the memory holds all tokens of the state that llama.cpp says it has loaded."""
    memory = llama_cpp.llama_get_memory(llama._ctx.ctx)
    held = llama_cpp.llama_memory_seq_pos_max(memory, 0) + 1
    if held < n_tokens:
        raise StateError(f"the state says that it holds {n_tokens} tokens, and only {held} are in it")


def raise_refused(state: llama_cpp.LlamaState, errors: Sequence[str]) -> NoReturn:
    """Say why llama.cpp has refused a state.

    Args:
        state: the same.
        errors: what llama.cpp said.
    """
    reason = "; ".join(errors) or "llama.cpp gave no reason"
    other = "" if hasattr(state, _MARK) else f", or saved by another library, and this is {_library()}"
    raise StateError(
        f"the state cannot be loaded: {reason}. It is damaged, of other settings{other}. Load it with the model, "
        "type_k, type_v, flash_attn and library that saved it. This Llama holds nothing now, as after reset()"
    )


def _checksum(state: llama_cpp.LlamaState) -> int:
    tokens = np.asarray(state.input_ids[: state.n_tokens], dtype=np.int32).tobytes()
    return zlib.crc32(state.llama_state, zlib.crc32(tokens))


def _model(llama: BaseLlama) -> str:
    model = llama._model
    name = llama.metadata.get("general.name", "without a name")
    return f"{name} ({model.desc()}, {model.n_params():,} parameters, {model.size():,} bytes)"


def _library() -> str:
    # The library need not be the one that the bindings came with (LLAMA_CPP_LIB_PATH).
    return f"llama-cpp-python {llama_cpp.__version__} with ggml {ggml_version(_bindings._lib)}"
