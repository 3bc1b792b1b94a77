"""Saved states, with checks that llama.cpp lacks: damaged states and those of other models or settings are refused."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import llama_cpp
import numpy as np
import numpy.typing as npt

from specllama._core import FIRST_EMBEDDING
from specllama.engine.model import token_ids
from specllama.engine.origin import library
from specllama.engine.position import numbers_of_embeddings

from .base_class import BaseLlama

_MARK = "specllama_origin"  # an attribute that the states saved by specllama have, and states of llama_cpp have not


class StateError(ValueError, RuntimeError):
    """A saved state cannot be loaded. It is a RuntimeError, too, since llama_cpp.Llama raises that."""


def marked(origin: Mapping[str, Any], state: llama_cpp.LlamaState) -> llama_cpp.LlamaState:
    """Attach the origin and a checksum to a state. Both are kept when the state is pickled."""
    setattr(state, _MARK, {**origin, "checksum": _checksum(state)})
    return state


def fitted(llama: BaseLlama, current: Mapping[str, Any], state: Any) -> llama_cpp.LlamaState:
    """Check a saved state, and fit it to a Llama, whose context may have another size than that of the saving one.

    Args:
        llama: the Llama that loads the state.
        current: the ``engine.origin.origin_of`` of this Llama's model.
        state: the state.

    Raises:
        StateError: the state is too long or damaged, or was computed with other weights, settings or library.
        TypeError: `state` is no state.
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
    if origin is not None:
        _require_same(origin, current)
        if origin["checksum"] != _checksum(state):
            raise StateError("the state is damaged: its checksum has changed since it was saved; save it anew")
    return llama_cpp.LlamaState(
        input_ids=input_ids,
        scores=llama.scores,
        n_tokens=n_tokens,
        llama_state=state.llama_state,
        llama_state_size=state.llama_state_size,
        seed=state.seed,
    )


def _require_same(origin: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Check that a state was computed with the weights and settings of a Llama.

    States of early releases of specllama record fewer of these. Only those that a state records are compared.

    Raises:
        StateError: something differs.
    """
    if origin["model"] != current["model"]:
        raise StateError(
            f"the state is of the model {origin['model']}, and this Llama has {current['model']}: load the first model"
        )
    # llama.cpp does not check versions: it would read another version's bytes as if they had its own layout.
    if origin["library"] != current["library"]:
        raise StateError(
            f"the state was saved by {origin['library']}, and this is {current['library']}: load it with the library "
            "that saved it, or save it anew"
        )
    if origin.get("weights") is not None and current["weights"] is not None and origin["weights"] != current["weights"]:
        raise StateError(
            f"the state was computed with the weights {origin['weights']} of {current['model']}, and this Llama's are "
            f"{current['weights']}, in a file of the same name and shape: load the file that it was computed with"
        )
    if origin.get("flash_attn", current["flash_attn"]) != current["flash_attn"]:
        raise StateError(
            f"the state was saved with flash_attn={origin['flash_attn']}, and has another layout in memory: create the "
            f"Llama with flash_attn={origin['flash_attn']}"
        )
    if origin.get("lora", current["lora"]) != current["lora"]:
        theirs, ours = _adapter(origin), _adapter(current)
        raise StateError(
            f"the state was computed with {theirs}, and this Llama has {ours}: create the Llama with {theirs} "
            "(lora_path)"
        )
    settings: Mapping[str, Any] = origin.get("settings", {})
    for name in sorted(settings.keys() & current["settings"].keys()):
        theirs, ours = settings[name], current["settings"][name]
        if theirs != ours:
            raise StateError(
                f"the state was computed with {name}={theirs}, and this Llama has {name}={ours}: create the Llama with "
                f"{name}={theirs}"
            )


def _adapter(origin: Mapping[str, Any]) -> str:
    return "no LoRA adapter" if origin["lora"] is None else f"the LoRA adapter {origin['lora_file']} ({origin['lora']})"


def _known(ids: npt.NDArray[Any], n_vocab: int) -> npt.NDArray[np.int32]:
    """The tokens of a state, checked.

    The ids that stand for images are replaced by new ones, which no other image of this process has.
    """
    is_embedding = ids <= FIRST_EMBEDDING
    known = token_ids(np.where(is_embedding, 0, ids), "the state's tokens", n_vocab)
    known[is_embedding] = numbers_of_embeddings(int(is_embedding.sum()))
    return known


def require_loaded(llama: BaseLlama, n_tokens: int) -> None:
    """Check that llama.cpp has loaded all tokens of a state.

    Raises:
        StateError: the context's memory holds fewer tokens.
    """
    memory = llama_cpp.llama_get_memory(llama._ctx.ctx)
    held = llama_cpp.llama_memory_seq_pos_max(memory, 0) + 1
    if held < n_tokens:
        raise StateError(f"the state says that it holds {n_tokens} tokens, and only {held} are in it")


def raise_refused(state: llama_cpp.LlamaState, errors: Sequence[str]) -> NoReturn:
    """Say why llama.cpp has refused a state.

    Args:
        state: the state.
        errors: llama.cpp's messages.

    Raises:
        StateError: always.
    """
    reason = "; ".join(errors) or "llama.cpp gave no reason"
    other = "" if hasattr(state, _MARK) else f" or by another library than {library()}"
    raise StateError(
        f"the state cannot be loaded: {reason}. It is damaged, or was saved with other settings{other}. Load it with "
        "the model, type_k, type_v, flash_attn and library that saved it. This Llama holds nothing now, as after "
        "reset()"
    )


def _checksum(state: llama_cpp.LlamaState) -> int:
    tokens = np.asarray(state.input_ids[: state.n_tokens], dtype=np.int32).tobytes()
    return zlib.crc32(state.llama_state, zlib.crc32(tokens))
