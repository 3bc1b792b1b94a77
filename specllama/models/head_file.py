"""Heads: layers that read hidden states of a target, and are no model by themselves. They are drafts (EAGLE-3, MTP)."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import llama_cpp.llama_cpp as _bindings
import numpy as np

from specllama.backend.trial import WITHIN, tried
from specllama.backend.trial_key import trial_key, with_neighbours

from .gguf_values import StoredTensor, architecture_of, parts_of, read_whole_header, stored

_OTHERS = {"gemma4-assistant": "Gemma 4's assistant"}
_WITH_BLOCKS = "dflash"  # see `block_head_file`
_LAYERS = 3
# Architectures of which llama.cpp 0.3.36 has a graph of one MTP layer, and of several. It would end the process for
# others, which are therefore tried in a child process.
_WITH_SEVERAL = frozenset({"hy_v3", "mimo2", "step35"})
_WITH_MTP = _WITH_SEVERAL | {
    *("bailingmoe3", "cohere2moe", "deepseek2", "deepseek32", "deepseek4", "glm-dsa", "glm4moe"),
    *("nemotron_h_moe", "qwen35", "qwen35moe", "qwen3next"),
}
_MTP_TRIAL, _SECONDS = "engine._mtp_trial", 600.0
_OF_MTP = ".nextn.eh_proj.weight"
_PART = re.compile(r"-\d{5}-of-\d{5}(?=\.gguf$)")  # of a model in several files
_F32, _I64 = 0, 27  # of ggml_type
_DIMENSIONS_OF_MATRICES = 2
_NEVER_WEIGHTS = range(24, 29)  # I8 to I64, and F64


@dataclasses.dataclass(frozen=True)
class HeadFile:
    """An EAGLE-3 head in a file.

    Attributes:
        path: the file.
        layers: of the target, numbered from 0: what enters them is what the head reads.
        hidden_size: numbers in each of these states.
        embedding_length: numbers in a state of its own.
        n_vocab: tokens of its vocabulary, which is the target's.
        tensors: where they are, by name. Without token embeddings or an output matrix it uses the target's.
    """

    path: str
    layers: tuple[int, ...]
    hidden_size: int
    embedding_length: int
    n_vocab: int
    tensors: Mapping[str, StoredTensor]

    def require_fit(self, *, n_layer: int, n_embd: int, n_vocab: int) -> None:
        """Refuse a head for another target: llama.cpp would end the process, or take whatever lies in memory.

        Raises:
            ValueError: what does not fit.
        """
        whose = f"the head {os.path.basename(self.path)} is for another target"
        require_width(self.path, self.hidden_size, n_embd)
        require_layers(self.path, self.layers, n_layer)
        if self.embedding_length != n_embd and not {"token_embd.weight", "output.weight"} <= self.tensors.keys():
            raise ValueError(
                f"{whose}: it uses the target's token embeddings or output matrix, which are for states of {n_embd} "
                f"numbers, and its own have {self.embedding_length}"
            )
        require_tokens(self.path, self.tensors, self.n_vocab, n_vocab, has_matrix="output.weight" in self.tensors)


@dataclasses.dataclass(frozen=True)
class MtpFile:
    """The MTP layers of a model in a file of their own.

    Attributes:
        path: the file.
        hidden_size: numbers in a state of the target, and in its own.
        num_layers: how many there are.
    """

    path: str
    hidden_size: int
    num_layers: int

    def require_fit(self, *, n_layer: int, n_embd: int, n_vocab: int) -> None:
        """See `HeadFile`. Its vocabulary is compared with the target's token by token.

        Raises:
            ValueError: what does not fit.
        """
        require_width(self.path, self.hidden_size, n_embd)


def require_layers(path: str, layers: Sequence[int], n_layer: int) -> None:
    """Refuse a head that reads layers which a target of `n_layer` does not show.

    Raises:
        ValueError: one of them.
    """
    if not all(0 < layer < n_layer for layer in layers):
        raise ValueError(
            f"the head {os.path.basename(path)} is for another target: it reads what enters the layers "
            f"{', '.join(map(str, layers))}, and of this one that can be had of the layers 1 to {n_layer - 1}"
        )


def require_tokens(
    path: str, tensors: Mapping[str, StoredTensor], n_own: int, n_vocab: int, *, has_matrix: bool
) -> None:
    """Refuse a head that reads or says other tokens than those of its target.

    Args:
        path: its file.
        tensors: where they are, by name.
        n_own: tokens of its vocabulary.
        n_vocab: the target's.
        has_matrix: it has an output matrix of its own.

    Raises:
        ValueError: what does not fit.
    """
    name = os.path.basename(path)
    if "token_embd.weight" in tensors and tensors["token_embd.weight"].shape[-1] < n_vocab:
        raise ValueError(
            f"the head {name} has embeddings of {tensors['token_embd.weight'].shape[-1]} tokens, and the target "
            f"has {n_vocab}"
        )
    said = tensors["d2t"].size if "d2t" in tensors else n_own
    if not has_matrix and said != n_vocab:
        raise ValueError(
            f"the head {name} says {said} tokens by the target's output matrix, which says {n_vocab}: it needs "
            "one of its own"
        )
    if "d2t" not in tensors:
        return
    if tensors["d2t"].kind != _I64:
        raise ValueError(f"the head {name} is damaged: d2t must be of 64-bit integers")
    if not tensors["d2t"].size:
        raise ValueError(f"the head {name} says no tokens: its d2t is empty; convert it anew")
    ids = np.frombuffer(stored(path, tensors["d2t"], 8 * tensors["d2t"].size), "<i8")
    most = min(n_vocab, n_own) - 1
    if not 0 <= ids.min() <= ids.max() <= most:
        raise ValueError(
            f"the head {name} says tokens from {ids.min()} to {ids.max()}, and the target has 0 to {most}: its d2t "
            "must have the target's numbers"
        )


def require_width(path: str, wanted: int, found: int) -> None:
    """Refuse a head that reads states of another size.

    Raises:
        ValueError: it does.
    """
    if wanted != found:
        raise ValueError(
            f"the head {os.path.basename(path)} is for another target: it reads states of {wanted} numbers, and this "
            f"one's have {found}"
        )


def require_mtp(path: str) -> int:
    """Refuse a file without an MTP layer that llama.cpp can run, on which it would end the process.

    Whether it can is known of some architectures. Of any other a child process tries it, once for a file and library.

    Returns:
        How many MTP layers there are. Whoever loads a file that cannot be read says why; of that one it is 1.

    Raises:
        ValueError: it has none, or of another kind.
    """
    try:
        (values, _), *_ = parts = [read_whole_header(part) for part in parts_of(path)]
    except (ValueError, OSError):
        return 1
    architecture = architecture_of(values)
    count = values.get(f"{architecture}.nextn_predict_layers", 0)
    if not isinstance(count, int) or count <= 0:
        raise ValueError(f"{path} has no MTP layers: give a draft model's path, or draft_model='lookup'")
    found = sum(name.endswith(_OF_MTP) for _, tensors in parts for name in tensors)
    if not found:
        raise ValueError(f"{path} says that it has MTP layers, and has none: they are in another file, perhaps")
    if architecture in (_WITH_SEVERAL if count > 1 else _WITH_MTP) or os.environ.get(WITHIN) == _MTP_TRIAL:
        return min(count, found)
    reason = "alone in a file" if any(_is_mtp(tensors) for _, tensors in parts) else _why_no_mtp(path)
    if reason:
        raise ValueError(
            f"{path} has {count} MTP layers of the architecture {architecture}, which llama.cpp cannot run ({reason}): "
            "give a draft model's path, or draft_model='lookup'"
        )
    return min(count, found)


def _why_no_mtp(path: str) -> str:
    found = os.stat(path)
    key = {**trial_key(with_neighbours(_bindings._lib._name)), "file": f"{found.st_size} bytes, {found.st_mtime_ns}"}
    return tried(_MTP_TRIAL, [os.path.abspath(path)], key=key, seconds=_SECONDS).reason


BESIDE = ("mtp-", "dflash-", "dspark-", "eagle3-", "hydra-", "medusa-", "blockwise-")
"""How heads are called that lie beside their model, in the order in which llama.cpp looks for them; then those
that it does not know."""


def head_beside(target: str, kind: str = "eagle3-") -> str:
    """Where a head of a model is looked for: beside its file, by the name that llama.cpp looks for, too.

    Args:
        target: the model's file.
        kind: one of `BESIDE`.
    """
    folder, name = os.path.split(target)
    return os.path.join(folder, f"{kind}{_PART.sub('', name)}")


def is_head(values: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> bool:
    """Whether a file is no model by itself."""
    return architecture_of(values) in ("eagle3", _WITH_BLOCKS, *_OTHERS) or _is_mtp(tensors)


def _is_mtp(tensors: Mapping[str, StoredTensor]) -> bool:
    return any(name.endswith(_OF_MTP) for name in tensors) and "blk.0.attn_norm.weight" not in tensors


def read_head(path: str | os.PathLike[str]) -> HeadFile | MtpFile | None:
    """What a file says of the head in it; None if it is a model, or no whole GGUF file: who loads it says that.

    Raises:
        ValueError: a head of another kind, or one that does not say what it reads.
    """
    try:
        found = os.stat(path)
    except (ValueError, OSError):
        return None
    return _read_head(os.fspath(path), found.st_mtime_ns, found.st_size)


@functools.lru_cache(maxsize=8)  # a draft is asked about before its target is opened, and after
def _read_head(path: str, changed: int, size: int) -> HeadFile | MtpFile | None:
    try:
        values, tensors = read_whole_header(path)
    except (ValueError, OSError):
        return None
    architecture = architecture_of(values)
    if architecture in _OTHERS:
        raise ValueError(
            f"{path} is a head of the kind {_OTHERS[architecture]}: of heads, those of EAGLE-3, DFlash, DFlash2 and "
            "DSpark are supported"
        )
    if _is_mtp(tensors):
        num_layers = require_mtp(path)
        return MtpFile(path, number_in(path, values, f"{architecture}.embedding_length"), num_layers)
    if architecture != "eagle3":
        return None
    require_turns(path, values, architecture)
    require_types(path, tensors)
    layers = np.asarray(values.get("eagle3.target_layers", []))
    if layers.shape != (_LAYERS,) or layers.dtype.kind not in "iu":
        raise ValueError(f"{path} is a head that must name {_LAYERS} layers of its target (eagle3.target_layers)")
    return HeadFile(
        path=path,
        layers=tuple(int(layer) for layer in layers),
        hidden_size=number_in(path, values, "eagle3.target_hidden_size"),
        embedding_length=number_in(path, values, "eagle3.embedding_length"),
        n_vocab=len(values.get("tokenizer.ggml.tokens", [])),
        tensors=tensors,
    )


def number_in(path: str, values: Mapping[str, Any], name: str) -> int:
    """A number that a head's file must say.

    Raises:
        ValueError: it does not.
    """
    found = values.get(name)
    if not isinstance(found, int) or isinstance(found, bool):
        raise ValueError(f"{path} is a head whose {name} must be a number, and is {found!r:.60}")
    return found


def require_turns(path: str, values: Mapping[str, Any], architecture: str, *, same_values: bool = False) -> None:
    """Of queries and keys llama.cpp turns pairs of numbers by the token's position, and asserts that it can.

    Args:
        path: a head's file.
        values: what it says.
        architecture: of the head.
        same_values: its values must have the size of its keys.

    Raises:
        ValueError: it could not.
    """
    width = number_in(path, values, f"{architecture}.embedding_length")
    heads = values.get(f"{architecture}.attention.head_count")
    of_keys = values.get(f"{architecture}.attention.head_count_kv", heads)
    if not isinstance(heads, int) or not isinstance(of_keys, int):
        return  # an array: its tensors have other shapes
    if not 0 < of_keys <= heads <= width or heads % of_keys:
        raise ValueError(
            f"{path} is a head that says it has {heads} attention heads, {of_keys} of keys, in {width} numbers"
        )
    size = values.get(f"{architecture}.attention.key_length", width // heads)
    turned = values.get(f"{architecture}.rope.dimension_count", size)
    of_values = values.get(f"{architecture}.attention.value_length", width // heads)
    if same_values and of_values != size:
        raise ValueError(
            f"{path} is a head with keys of {size!r:.60} numbers and values of {of_values!r:.60}: they must be alike"
        )
    if isinstance(size, int) and isinstance(turned, int) and not (0 < turned <= size and turned % 2 == 0):
        raise ValueError(
            f"{path} is a head whose rope.dimension_count is {turned}: it must be even, and from 2 to {size}, the size "
            "of its attention heads"
        )


def require_types(path: str, tensors: Mapping[str, StoredTensor]) -> None:
    """Behind what llama.cpp multiplies lie kernels for some types, and null pointers for others.

    Raises:
        ValueError: a tensor of another type.
    """
    for name, tensor in tensors.items():
        is_matrix = len(tensor.shape) == _DIMENSIONS_OF_MATRICES
        if name != "d2t" and (tensor.kind in _NEVER_WEIGHTS or not (is_matrix or tensor.kind == _F32)):
            raise ValueError(
                f"{path} is a head whose {name} has type {tensor.kind}: vectors must be F32, and matrices floats or "
                "quantized"
            )
