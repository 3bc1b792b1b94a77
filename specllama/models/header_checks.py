"""Checks a model's metadata before llama.cpp loads the model, because llama.cpp's own assertions end the process."""

from __future__ import annotations

import collections
import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from . import catalog
from .gguf_values import (
    StoredTensor,
    UnusableFileError,
    architecture_of,
    read_whole_header,
    read_without_texts,
    text_in,
)
from .heads import is_head
from .weights_digest import Digest

_MOST_LAYERS = 512  # LLAMA_MAX_LAYERS
_MOST_EXPERTS = 1024  # LLAMA_MAX_EXPERTS
_SCALINGS = (b"none", b"linear", b"yarn", b"longrope")
_WITH_BYTES = ("llama", "t5")  # tokenizers that write unknown characters as tokens of single bytes
_BYTE = 6  # LLAMA_TOKEN_TYPE_BYTE
_WORD_PIECE = "bert"
_AROUND_TEXTS: dict[str, dict[str, int | None]] = {
    _WORD_PIECE: {"bos": 101, "seperator": 102},
    "gemma4": {"bos": None},
}
"""For each tokenizer, the tokens that it puts around every text, and their default ids if it has any."""
_NEVER_MULTIPLIED = {24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64"}
_TABLES = ("d2t", "t2d", "tid2eid")  # parts of the names of tables of tokens and experts, which consist of integers
_MOST_SHOWN = 60


def overridden(values: Mapping[str, Any], overrides: Mapping[str, Any] | None) -> dict[str, Any]:
    """The metadata that llama.cpp sees with ``kv_overrides``."""
    encoded = {name: value.encode() if isinstance(value, str) else value for name, value in (overrides or {}).items()}
    return {**values, **encoded}


def require_sound(path: str, *, as_head: bool = False, overrides: Mapping[str, Any] | None = None) -> Digest | None:
    """Check that llama.cpp can load a file without ending the process.

    Args:
        path: the file of a model or of a head.
        as_head: whether it is opened as a head of its target.
        overrides: the ``kv_overrides``, which may correct the file's values.

    Returns:
        A digest of the file's weights; None if the file is damaged, which llama.cpp reports itself.

    Raises:
        ValueError: a value would end the process, or the file is a head where a model is needed.
    """
    try:
        values, tensors = read_whole_header(path)
    except OSError:
        return None  # llama.cpp will refuse the file; then the reason is found
    except UnusableFileError:
        if _says_it_is_a_head(path):  # llama.cpp may open a damaged head all the same, and crash
            raise
        return None
    if is_head(values, tensors) and not as_head:
        raise ValueError(f"{path} is a head, and no model: give its path as draft_model (-md) of its target")
    problem = next(itertools.chain(problems(overridden(values, overrides)), _wrong_types(tensors)), None)
    if problem is not None:
        raise ValueError(f"cannot load {path}: {problem}, on which llama.cpp would crash; {catalog.remedy(path)}")
    return Digest(path, values, tensors)


def _says_it_is_a_head(path: str) -> bool:
    """Whether the metadata of a file with damaged tensors are those of a head."""
    try:
        values, _ = read_without_texts(path)
    except (UnusableFileError, OSError):
        return False
    return is_head(values, {})


def problems(values: Mapping[str, Any]) -> Iterable[str]:
    """The reasons why llama.cpp would crash with these metadata. The metadata may be incomplete."""
    yield from _wrong_epsilons(values)
    yield from _wrong_layers(values)
    yield from _wrong_experts(values)
    yield from _wrong_tokens(values)
    yield from _missing_tokens(values)


def _wrong_types(tensors: Mapping[str, StoredTensor]) -> Iterable[str]:
    """Matrices of integers or of doubles, which llama.cpp loads and cannot multiply."""
    for name, tensor in tensors.items():
        kind = _NEVER_MULTIPLIED.get(tensor.kind)
        if kind is not None and not any(table in name for table in _TABLES):
            yield f"the tensor {name[:_MOST_SHOWN]} has the type {kind}"


def largest(values: Mapping[str, Any], name: str) -> int | float:
    """A number in an architecture's metadata, or the largest one if there is one for each layer; 0 if it is missing."""
    found = values.get(f"{architecture_of(values)}.{name}", 0)
    if isinstance(found, np.ndarray):
        return int(found.max(initial=0)) if found.dtype.kind in "iu" else 0
    return found if isinstance(found, (int, float)) else 0  # llama.cpp refuses any other type itself


def whole_number(values: Mapping[str, Any], name: str) -> int:
    """The number that `largest` finds, but 0 if it is no whole number."""
    found = largest(values, name)
    return found if isinstance(found, int) else 0


def trained_context(path: str) -> int | None:
    """The most tokens in a text that a model was trained for; None if its file does not say it, or is no model."""
    try:
        return whole_number(read_without_texts(path)[0], "context_length") or None
    except (OSError, UnusableFileError):
        return None


def _wrong_epsilons(values: Mapping[str, Any]) -> Iterable[str]:
    for name, value in values.items():
        if name.endswith("epsilon") and isinstance(value, (int, float)) and not value >= 0:  # this includes NaN
            yield f"its {name} is {value}, and must be 0 or more"


def _wrong_layers(values: Mapping[str, Any]) -> Iterable[str]:
    if "general.architecture" not in values:
        return
    layers = largest(values, "block_count")
    said = values.get(f"{architecture_of(values)}.block_count")  # llama.cpp refuses a missing block_count itself
    if isinstance(said, int) and not 0 < layers <= _MOST_LAYERS:
        yield f"its block_count is {layers}, and must be from 1 to {_MOST_LAYERS}"
    further = largest(values, "nextn_predict_layers")
    if further > layers:
        yield f"its nextn_predict_layers is {further}, and its block_count only {layers}"
    scaling = values.get(f"{architecture_of(values)}.rope.scaling.type", _SCALINGS[0])
    if isinstance(scaling, bytes) and scaling not in _SCALINGS:
        yield f"its rope.scaling.type is {_readable(scaling)}, which does not exist"


def _wrong_experts(values: Mapping[str, Any]) -> Iterable[str]:
    experts, used = largest(values, "expert_count"), largest(values, "expert_used_count")
    groups, groups_used = largest(values, "expert_group_count"), largest(values, "expert_group_used_count")
    what = f"its expert_count is {experts} with expert_used_count {used}"
    if experts > _MOST_EXPERTS:
        yield f"its expert_count is {experts}, and must be at most {_MOST_EXPERTS}"
    elif used > experts or (experts > 0) != (used > 0):
        yield f"{what}, which must be from 1 to the former, or both 0"
    elif groups and (groups >= experts or (groups > 1 and (experts % groups or not 0 < groups_used < groups))):
        yield f"{what}, in {groups} groups of which {groups_used} are used: they cannot be divided so"


def _wrong_tokens(values: Mapping[str, Any]) -> Iterable[str]:
    tokens = values.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list):
        return
    known = set(tokens)
    if len(known) < len(tokens):
        twice = [token for token, count in collections.Counter(tokens).items() if count > 1 and token]
        if twice:
            yield f"its vocabulary has the token {_readable(twice[0])} twice"
    model = text_in(values, "tokenizer.ggml.model")
    kinds = values.get("tokenizer.ggml.token_type")
    if model in (*_WITH_BYTES, _WORD_PIECE) and isinstance(kinds, np.ndarray):
        for token in np.flatnonzero(kinds[: len(tokens)] == _BYTE):
            said = f"its token {token}, {_readable(tokens[token])} has the type of a byte"
            if model == _WORD_PIECE:
                yield f"{said}, and a vocabulary of this kind has no bytes"
            elif not re.fullmatch(rb"<0x[0-9A-F]{2}>", tokens[token]):
                yield f"{said}, and not the form <0x41>"
    if model != "llama":
        return
    without = [byte for byte in range(256) if b"<0x%02X>" % byte not in known]
    missing = [byte for byte in without if bytes([byte]) not in known]
    if missing and len(without) < 256:  # a vocabulary without any tokens of bytes is for a fixed set of letters
        yield f"its vocabulary has no token for the byte 0x{missing[0]:02X}"


def _missing_tokens(values: Mapping[str, Any]) -> Iterable[str]:
    tokens, model = values.get("tokenizer.ggml.tokens"), text_in(values, "tokenizer.ggml.model")
    if not isinstance(tokens, list):
        return
    around = _AROUND_TEXTS.get(model, {})
    if model == "t5" and values.get("tokenizer.ggml.add_bos_token") is True:
        around = {"bos": None}
    for name, default in around.items():
        given = values.get(f"tokenizer.ggml.{name}_token_id", default)
        if not any(isinstance(token, int) and 0 <= token < len(tokens) for token in (given, default)):
            yield f"its {name}_token_id is {_readable(given)}: it has no such token, and puts it around every text"


def _readable(text: Any) -> str:
    return repr(text[:_MOST_SHOWN])[1:] if isinstance(text, bytes) else repr(text)
