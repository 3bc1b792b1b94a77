"""Files of heads. A head is a layer that reads hidden states of a target, and drafts for it (EAGLE-3, MTP)."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import llama_cpp.llama_cpp as _bindings
import numpy as np

from specllama.backend.trial import WITHIN, tried
from specllama.backend.trial_key import trial_key, with_neighbours

from .gguf_values import (
    StoredTensor,
    UnusableFileError,
    architecture_of,
    cached,
    parts_of,
    read_whole_header,
    stored,
    tokens_in,
)

_OTHERS = {"gemma4-assistant": "Gemma 4's assistant"}
_WITH_BLOCKS = "dflash"  # the module `block_head_file` reads this kind
_LAYERS = 3
# The architectures of which llama.cpp (llama-cpp-python 0.3.36) can run several MTP layers, or only one. For others it
# may end the process, so a child process tries them first.
_WITH_SEVERAL = frozenset({"hy_v3", "mimo2", "step35"})
_WITH_MTP = _WITH_SEVERAL | {
    *("bailingmoe3", "cohere2moe", "deepseek2", "deepseek32", "deepseek4", "glm-dsa", "glm4moe"),
    *("nemotron_h_moe", "qwen35", "qwen35moe", "qwen3next"),
}
_MTP_TRIAL, _SECONDS = "engine._mtp_trial", 600.0
_OF_MTP = ".nextn.eh_proj.weight"
_PART = re.compile(r"-\d{5}-of-\d{5}(?=\.gguf$)")  # in the name of a model that is split into several files
_F32, _I64 = 0, 27  # values of ggml_type
_DIMENSIONS_OF_MATRICES = 2
_NEVER_WEIGHTS = range(24, 29)  # values of ggml_type: I8 to I64, and F64


@dataclasses.dataclass(frozen=True)
class HeadFile:
    """The description of an EAGLE-3 head in a file.

    Attributes:
        path: the file.
        layers: the target's layers whose inputs the head reads, numbered from 0.
        hidden_size: how many numbers a hidden state of the target has.
        embedding_length: how many numbers the head's own state has.
        n_vocab: the number of tokens in its vocabulary, which is the target's.
        tensors: the place of each tensor in the file, by name. If the token embeddings or the output matrix are
            missing, the head uses the target's.
    """

    path: str
    layers: tuple[int, ...]
    hidden_size: int
    embedding_length: int
    n_vocab: int
    tensors: Mapping[str, StoredTensor]

    def require_fit(self, *, n_layer: int, n_embd: int, n_vocab: int) -> None:
        """Check that the head was made for a target. With another one llama.cpp would crash, or read arbitrary memory.

        Args:
            n_layer: the number of the target's layers.
            n_embd: how many numbers a hidden state of the target has.
            n_vocab: the number of tokens in the target's vocabulary.

        Raises:
            UnusableFileError: the head does not fit.
        """
        whose = f"the head {os.path.basename(self.path)} is for another target"
        require_width(self.path, self.hidden_size, n_embd)
        require_layers(self.path, self.layers, n_layer)
        if self.embedding_length != n_embd and not {"token_embd.weight", "output.weight"} <= self.tensors.keys():
            raise UnusableFileError(
                f"{whose}: it uses the target's token embeddings or output matrix, which are for states of {n_embd} "
                f"numbers, and its own states have {self.embedding_length}"
            )
        require_tokens(self.path, self.tensors, self.n_vocab, n_vocab, has_matrix="output.weight" in self.tensors)


@dataclasses.dataclass(frozen=True)
class MtpFile:
    """The description of a model's MTP layers in a file of their own.

    Attributes:
        path: the file.
        hidden_size: how many numbers a hidden state has, the target's and the head's.
        num_layers: the number of MTP layers.
    """

    path: str
    hidden_size: int
    num_layers: int

    def require_fit(self, *, n_layer: int, n_embd: int, n_vocab: int) -> None:
        """Check that the head was made for a target. The vocabularies are compared token by token when it is opened.

        Args:
            n_layer: not used.
            n_embd: how many numbers a hidden state of the target has.
            n_vocab: not used.

        Raises:
            UnusableFileError: the head does not fit.
        """
        require_width(self.path, self.hidden_size, n_embd)


def require_layers(path: str, layers: Sequence[int], n_layer: int) -> None:
    """Check that a target with `n_layer` layers has the layers that a head reads.

    Raises:
        UnusableFileError: it does not have one of them.
    """
    if not all(0 < layer < n_layer for layer in layers):
        raise UnusableFileError(
            f"the head {os.path.basename(path)} is for another target: it reads the inputs of the layers "
            f"{', '.join(map(str, layers))}, and this target shows those of the layers 1 to {n_layer - 1}"
        )


def require_tokens(
    path: str, tensors: Mapping[str, StoredTensor], n_own: int, n_vocab: int, *, has_matrix: bool
) -> None:
    """Check that a head reads and drafts tokens of its target.

    Args:
        path: the head's file.
        tensors: the place of each tensor in the file, by name.
        n_own: the number of tokens in the head's vocabulary.
        n_vocab: the number of tokens in the target's vocabulary.
        has_matrix: whether the head has an output matrix of its own.

    Raises:
        UnusableFileError: the head does not fit.
    """
    name = os.path.basename(path)
    if "token_embd.weight" in tensors and tensors["token_embd.weight"].shape[-1] < n_vocab:
        raise UnusableFileError(
            f"the head {name} has embeddings of {tensors['token_embd.weight'].shape[-1]} tokens, and the target "
            f"has {n_vocab}"
        )
    said = tensors["d2t"].size if "d2t" in tensors else n_own
    if not has_matrix and said != n_vocab:
        raise UnusableFileError(
            f"the head {name} drafts {said} tokens with the target's output matrix, which has {n_vocab} rows: it needs "
            "a matrix of its own"
        )
    if "d2t" not in tensors:
        return
    if tensors["d2t"].kind != _I64:
        raise UnusableFileError(f"the head {name} is damaged: d2t must be of 64-bit integers")
    ids = np.frombuffer(stored(path, tensors["d2t"]), "<i8")
    most = min(n_vocab, n_own) - 1
    if not 0 <= ids.min() <= ids.max() <= most:
        raise UnusableFileError(
            f"the head {name} drafts tokens from {ids.min()} to {ids.max()}, and the target has 0 to {most}: its d2t "
            "must have token ids of the target"
        )


def require_width(path: str, wanted: int, found: int) -> None:
    """Check the size of the hidden states that a head reads.

    Raises:
        UnusableFileError: the target's states have another size.
    """
    if wanted != found:
        raise UnusableFileError(
            f"the head {os.path.basename(path)} is for another target: it reads states of {wanted} numbers, and this "
            f"one's have {found}"
        )


def require_mtp(path: str) -> int:
    """Check that a model's file has MTP layers that llama.cpp can run. With other layers it would end the process.

    Some architectures are known to work. For all others a child process tries it, once for each file and library.

    Returns:
        The number of MTP layers; 1 if the file cannot be read, which is reported when it is loaded.

    Raises:
        UnusableFileError: the file has no MTP layers, or llama.cpp cannot run them.
    """
    try:
        (values, _), *_ = parts = [read_whole_header(part) for part in parts_of(path)]
    except (UnusableFileError, OSError):
        return 1  # loading the file will report what is wrong
    architecture = architecture_of(values)
    count = values.get(f"{architecture}.nextn_predict_layers", 0)
    if not isinstance(count, int) or count <= 0:
        raise UnusableFileError(
            f"{path} has no MTP layers: give a draft model's path, or draft_model='lookup' (-md lookup)"
        )
    found = sum(name.endswith(_OF_MTP) for _, tensors in parts for name in tensors)
    if not found:
        raise UnusableFileError(
            f"{path} names MTP layers in its metadata, and does not have them: perhaps they are in another file"
        )
    if architecture in (_WITH_SEVERAL if count > 1 else _WITH_MTP) or os.environ.get(WITHIN) == _MTP_TRIAL:
        return min(count, found)
    reason = "alone in a file" if any(_is_mtp(tensors) for _, tensors in parts) else _why_no_mtp(path)
    if reason:
        raise UnusableFileError(
            f"{path} has {count} MTP layers of the architecture {architecture}, which llama.cpp cannot run ({reason}): "
            "give a draft model's path, or draft_model='lookup' (-md lookup)"
        )
    return min(count, found)


def _why_no_mtp(path: str) -> str:
    found = os.stat(path)
    key = {**trial_key(with_neighbours(_bindings._lib._name)), "file": f"{found.st_size} bytes, {found.st_mtime_ns}"}
    return tried(_MTP_TRIAL, [os.path.abspath(path)], key=key, seconds=_SECONDS).reason


BESIDE = ("mtp-", "dflash-", "dspark-", "eagle3-", "hydra-", "medusa-", "blockwise-")
"""The beginnings of the names of heads that are beside their models. The names that llama.cpp looks for come first, in
its order."""


def head_beside(target: str, kind: str = "eagle3-") -> str:
    """The path of a head beside a model's file. llama.cpp looks for heads by these names, too.

    Args:
        target: the model's file.
        kind: one of `BESIDE`.
    """
    folder, name = os.path.split(target)
    return os.path.join(folder, f"{kind}{_PART.sub('', name)}")


def is_head(values: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> bool:
    """Whether a file is a head, and so no model by itself."""
    return architecture_of(values) in ("eagle3", _WITH_BLOCKS, *_OTHERS) or _is_mtp(tensors)


def _is_mtp(tensors: Mapping[str, StoredTensor]) -> bool:
    return any(name.endswith(_OF_MTP) for name in tensors) and "blk.0.attn_norm.weight" not in tensors


@cached
def read_head(path: str) -> HeadFile | MtpFile | None:
    """Read the description of an EAGLE-3 head or of an MTP layer.

    Returns:
        None if the file is a model, or no whole GGUF file. Loading it will report what is wrong.

    Raises:
        UnusableFileError: it is a head of another kind, or its description is incomplete.
    """
    try:
        values, tensors = read_whole_header(path)
    except (UnusableFileError, OSError):
        return None
    architecture = architecture_of(values)
    if architecture in _OTHERS:
        raise UnusableFileError(
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
        raise UnusableFileError(
            f"{path} is a head that must name {_LAYERS} layers of its target (eagle3.target_layers)"
        )
    return HeadFile(
        path=path,
        layers=tuple(int(layer) for layer in layers),
        hidden_size=number_in(path, values, "eagle3.target_hidden_size"),
        embedding_length=number_in(path, values, "eagle3.embedding_length"),
        n_vocab=len(tokens_in(values)),
        tensors=tensors,
    )


def number_in(path: str, values: Mapping[str, Any], name: str) -> int:
    """A number in the metadata of a head's file.

    Raises:
        UnusableFileError: it is missing, or no number.
    """
    found = values.get(name)
    if not isinstance(found, int) or isinstance(found, bool):
        raise UnusableFileError(f"{path} is a head whose {name} must be a number, and is {found!r:.60}")
    return found


def require_turns(path: str, values: Mapping[str, Any], architecture: str, *, same_values: bool = False) -> None:
    """Check the sizes for rotary positions (RoPE), in which llama.cpp turns pairs of numbers of queries and keys.

    Args:
        path: the head's file.
        values: its metadata.
        architecture: its architecture.
        same_values: whether its values must have the size of its keys.

    Raises:
        UnusableFileError: llama.cpp would crash at an assertion with these sizes.
    """
    width = number_in(path, values, f"{architecture}.embedding_length")
    heads = values.get(f"{architecture}.attention.head_count")
    of_keys = values.get(f"{architecture}.attention.head_count_kv", heads)
    if not isinstance(heads, int) or not isinstance(of_keys, int):
        return  # arrays with a number for each layer: llama.cpp checks the shapes of the tensors
    if not 0 < of_keys <= heads <= width or heads % of_keys:
        raise UnusableFileError(
            f"{path} is a head with impossible sizes: {heads} attention heads, {of_keys} heads for keys, width {width}"
        )
    size = values.get(f"{architecture}.attention.key_length", width // heads)
    turned = values.get(f"{architecture}.rope.dimension_count", size)
    of_values = values.get(f"{architecture}.attention.value_length", width // heads)
    if same_values and not np.array_equal(of_values, size):
        raise UnusableFileError(
            f"{path} is a head with keys of {size!r:.60} numbers and values of {of_values!r:.60}: they must be alike"
        )
    if isinstance(size, int) and isinstance(turned, int) and not (0 < turned <= size and turned % 2 == 0):
        raise UnusableFileError(
            f"{path} is a head whose rope.dimension_count is {turned}: it must be even, and from 2 to {size}, the size "
            "of its attention heads"
        )


def require_types(path: str, tensors: Mapping[str, StoredTensor]) -> None:
    """Check the types of a head's tensors. llama.cpp has multiplications for some types, and null pointers for others.

    Raises:
        UnusableFileError: a tensor has a type that cannot be multiplied.
    """
    for name, tensor in tensors.items():
        is_matrix = len(tensor.shape) == _DIMENSIONS_OF_MATRICES
        if name != "d2t" and (tensor.kind in _NEVER_WEIGHTS or not (is_matrix or tensor.kind == _F32)):
            raise UnusableFileError(
                f"{path} is a head whose {name} has type {tensor.kind}: vectors must be F32, and matrices floats or "
                "quantized"
            )
