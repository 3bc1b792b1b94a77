"""Writes a trained draft as a GGUF file: a head (``eagle3``, or an architecture of our own), or a small model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specllama.backend.replacing import replacing
from specllama.models import ARCHITECTURES, MASK_TOKEN, parts_of

from .acceptance import Acceptance
from .head import NAMES, STEPS, EagleHead, EagleShape, Learner
from .parallel import ParallelStart
from .sibling import Sibling
from .state_head import StateHead
from .target import Target
from .torch_here import require_gguf_package

_ARCH = "eagle3"
_N_CTX = 131_072  # the head has no limit of its own: it only knows distances between tokens
_NOT_COPIED = (
    *("general.architecture", "general.author", "general.file_type"),
    *("general.quantized_by", "general.quantization_version"),
)
"""Metadata of a small model that are written anew, or are wrong after its training."""
_BLOCK = 32  # numbers in a block, in the types that are written


def tensors_of(head: Learner) -> dict[str, npt.NDArray[np.float32]]:
    """The weights by their names in the file. In the file, the matrices include the division of states by `sizes`."""
    if isinstance(head, StateHead):
        found = head.tensors()
    else:
        named = dict(head.named_parameters())
        found = {f"{there}.weight": named[here] for here, there in NAMES.items()}
        found["fc.weight"] = named["fc"] / head.sizes
    found["output.weight"] = head.output
    return {name: weight.detach().float().cpu().numpy() for name, weight in found.items()}


def write_head(
    path: Path,
    target: Target,
    head: Learner,
    rows: npt.NDArray[np.int64],
    file_type: str,
    *,
    acceptance: Acceptance,
    num_tokens: int,
    name: str | None = None,
) -> Path:
    """Write a head, or a small model with its low-rank additions merged. The file gets its name when it is complete.

    Args:
        path: the file to write.
        target: the target of the head.
        head: the head, or the small model.
        rows: the tokens that a head can draft.
        file_type: ``"F32"``, ``"Q8_0"`` or ``"Q4_0"``. It is used for matrices that have learned, and whose rows can be
            divided into blocks.
        acceptance: the measured acceptance, for the metadata.
        num_tokens: how many tokens of text were learned, for the metadata.
        name: the name of a head for the metadata; None for the file's name.

    Returns:
        `path`.

    Raises:
        OSError: the disk is full, or cannot be written.
    """
    from specllama import __version__

    gguf = require_gguf_package()
    with replacing(path, durable=True) as temporary:
        writer = gguf.GGUFWriter(temporary, _architecture(head))
        writer.add_author(f"specllama {__version__} train-draft")
        writer.add_file_type(gguf.LlamaFileType["ALL_F32" if file_type == "F32" else f"MOSTLY_{file_type}"])
        # The training comes first, because a search for drafts reads the metadata only up to the tokens.
        _add_training(writer, target, acceptance, num_tokens)
        if isinstance(head, Sibling):
            _add_small_model(writer, head, file_type, gguf)
        else:
            writer.add_name(name or path.stem)
            _add_head(writer, target, head, rows, file_type, gguf)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return path


def _architecture(head: Learner) -> str:
    if isinstance(head, Sibling):
        return head.start.model.architecture
    return ARCHITECTURES[head.kind] if isinstance(head, StateHead) else _ARCH


def _add_training(writer: Any, target: Target, acceptance: Acceptance, num_tokens: int) -> None:
    """Add the metadata about the target, and about the training."""
    for name, said in (
        *(("target.architecture", target.architecture), ("target.file", os.path.basename(target.path))),
        *(("target.vocabulary", target.vocabulary), ("target.weights", target.weights)),
    ):
        writer.add_string(f"specllama.{name}", said)
    writer.add_uint32("specllama.target.block_count", target.n_layer)
    writer.add_uint64("specllama.trained_tokens", num_tokens)
    writer.add_array("specllama.acceptance.greedy", [float(one) for one in acceptance.greedy])
    writer.add_array("specllama.acceptance.sampled", [float(one) for one in acceptance.sampled])


def _add_head(
    writer: Any, target: Target, head: Learner, rows: npt.NDArray[np.int64], file_type: str, gguf: Any
) -> None:
    kind = head.kind if isinstance(head, StateHead) else "EAGLE-3"
    writer.add_description(f"{kind} head for {os.path.basename(target.path)}: a draft, and no model by itself")
    if isinstance(head, StateHead):
        _add_sizes_of_states(writer, target, head)
    elif isinstance(head, EagleHead):
        _add_sizes(writer, target, head.shape)
        for name, field in gguf.GGUFReader(parts_of(target.path)[0]).fields.items():
            if name.startswith("tokenizer.") and not name.startswith("tokenizer.chat_template"):
                _copy(writer, name, field)
    if len(rows) < target.n_vocab:
        writer.add_tensor("d2t", rows.astype(np.int64))
    for name, tensor in tensors_of(head).items():
        _add_learned(writer, name, tensor, file_type, gguf)


def _add_small_model(writer: Any, sibling: Sibling, file_type: str, gguf: Any) -> None:
    """Add the matrices that have learned. All other tensors, and the metadata, come from the small model's file."""
    learned, parts = dict(sibling.merged()), parts_of(sibling.start.model.path)
    if isinstance(sibling.start, ParallelStart):
        writer.add_uint32(MASK_TOKEN, sibling.start.mask)
    for name, field in gguf.GGUFReader(parts[0]).fields.items():
        if not name.startswith(("GGUF.", "split.", "specllama.")) and name not in _NOT_COPIED:
            _copy(writer, name, field)
    for tensor in (tensor for part in parts for tensor in gguf.GGUFReader(part).tensors):
        if tensor.name in learned:
            _add_learned(writer, tensor.name, learned[tensor.name], file_type, gguf)
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)


def _add_learned(writer: Any, name: str, tensor: npt.NDArray[np.float32], file_type: str, gguf: Any) -> None:
    """Add a tensor. It is quantized if it is a matrix whose rows can be divided into blocks."""
    if file_type == "F32" or tensor.ndim != 2 or tensor.shape[1] % _BLOCK:
        writer.add_tensor(name, np.ascontiguousarray(tensor))
    else:
        kind = gguf.GGMLQuantizationType[file_type]
        writer.add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)


def _copy(writer: Any, name: str, field: Any) -> None:
    writer.add_key_value(name, field.contents(), field.types[0], field.types[1] if len(field.types) > 1 else None)


def _add_sizes(writer: Any, target: Target, shape: EagleShape) -> None:
    for name, number in (
        *(("context_length", _N_CTX), ("embedding_length", shape.n_embd), ("block_count", 1)),
        *(("feed_forward_length", shape.n_ff), ("attention.head_count", shape.n_head)),
        *(("attention.head_count_kv", shape.n_head_kv), ("attention.key_length", shape.head_size)),
        *(("attention.value_length", shape.head_size), ("rope.dimension_count", shape.head_size)),
        *(("vocab_size", target.n_vocab), ("target_hidden_size", target.n_embd)),
    ):
        writer.add_uint32(f"{_ARCH}.{name}", number)
    writer.add_float32(f"{_ARCH}.attention.layer_norm_rms_epsilon", shape.epsilon)
    writer.add_float32(f"{_ARCH}.rope.freq_base", shape.rope_base)
    if shape.norm_before_residual:
        writer.add_bool(f"{_ARCH}.norm_before_residual", True)
    writer.add_array(f"{_ARCH}.target_layers", list(target.layers))


def _add_sizes_of_states(writer: Any, target: Target, head: StateHead) -> None:
    for name, number in (
        *(("embedding_length", head.n_embd), ("vocab_size", target.n_vocab)),
        *(("place_count", STEPS), ("layer_count", 1 if head.columns else 0)),
    ):
        writer.add_uint32(f"{ARCHITECTURES[head.kind]}.{name}", number)
