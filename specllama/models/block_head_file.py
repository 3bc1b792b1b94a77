"""Heads that say several tokens in one decode: DFlash, and DFlash2 and DSpark, which chain what they say."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from .gguf_values import StoredTensor, architecture_of, read_whole_header, read_without_texts
from .head_file import (
    number_in,
    require_layers,
    require_tokens,
    require_turns,
    require_types,
    require_width,
)

_ARCHITECTURE = "dflash"
_USUAL_SIZE = 16
_SIZES = range(2, 513)


@dataclasses.dataclass(frozen=True)
class Block:
    """What such a head reads besides its memory: the last token of the text, and masks.

    Attributes:
        size: tokens of it, at most.
        mask: the token that stands for one that is not known yet.
        first: of its places: the first that says a token of the draft.
        is_causal: whether a place sees those before it alone.
        is_whole: what it says is chained within llama.cpp's graph, which takes all blocks of a batch to be of one size.
        num_candidates: so many tokens it chooses among, place by place, by what the one before is. 0: among all.
    """

    size: int
    mask: int
    first: int
    is_causal: bool
    is_whole: bool
    num_candidates: int


@dataclasses.dataclass(frozen=True)
class BlockHeadFile:
    """Such a head in a file.

    Attributes:
        path: the file.
        layers: of the target, numbered from 0: what enters them is what the head reads.
        hidden_size: numbers in a state of the target, and in its own.
        n_vocab: tokens of its vocabulary, which is the target's.
        block: what it reads besides.
        tensors: where they are, by name. Without token embeddings or an output matrix it uses the target's.
    """

    path: str
    layers: tuple[int, ...]
    hidden_size: int
    n_vocab: int
    block: Block
    tensors: Mapping[str, StoredTensor]

    def require_fit(self, *, n_layer: int, n_embd: int, n_vocab: int) -> None:
        """Refuse a head for another target: llama.cpp would end the process, or take whatever lies in memory.

        Raises:
            ValueError: what does not fit.
        """
        require_width(self.path, self.hidden_size, n_embd)
        require_layers(self.path, self.layers, n_layer)
        own_matrix = {"output.weight", "token_embd.weight"} & self.tensors.keys()
        require_tokens(self.path, self.tensors, self.n_vocab, n_vocab, has_matrix=bool(own_matrix))
        most = self.n_vocab if "token_embd.weight" in self.tensors else min(self.n_vocab, n_vocab)
        if not 0 <= self.block.mask < most:
            raise ValueError(
                f"the head {os.path.basename(self.path)} reads token {self.block.mask} in place of those that are not "
                f"known (tokenizer.ggml.mask_token_id), and there are embeddings of the tokens 0 to {most - 1}"
            )


def read_block_head(path: str | os.PathLike[str]) -> BlockHeadFile | None:
    """What a file says of such a head in it; None if it is something else, or no whole GGUF file.

    Raises:
        ValueError: one that llama.cpp cannot run, or that does not say what it reads.
    """
    try:
        found = os.stat(path)
    except (ValueError, OSError):
        return None
    return _read_block_head(os.fspath(path), found.st_mtime_ns, found.st_size)


@functools.lru_cache(maxsize=8)  # a draft is asked about before its target is opened, and after
def _read_block_head(path: str, changed: int, size: int) -> BlockHeadFile | None:
    try:
        first, _ = read_without_texts(path, until_tokens=True)  # of most files that is enough, and a thousandth
        if architecture_of(first) not in ("", _ARCHITECTURE):
            return None
        values, tensors = read_whole_header(path)
    except (ValueError, OSError):
        return None
    if architecture_of(values) != _ARCHITECTURE:
        return None
    if values.get(f"{_ARCHITECTURE}.hyper_connection.count"):
        raise ValueError(
            f"{path} is a head of DeepSeek-V4's own kind of DSpark, which specllama cannot use: give a smaller model, "
            "or draft_model='lookup'"
        )
    require_turns(path, values, _ARCHITECTURE, same_values=True)
    require_types(path, tensors)
    _require_axes(path, values)
    layers = np.asarray(values.get(f"{_ARCHITECTURE}.target_layers", []))
    if layers.ndim != 1 or not layers.size or layers.dtype.kind not in "iu":
        raise ValueError(f"{path} is a head that must name the layers of its target ({_ARCHITECTURE}.target_layers)")
    return BlockHeadFile(
        path=path,
        layers=tuple(int(layer) for layer in layers),
        hidden_size=number_in(path, values, f"{_ARCHITECTURE}.embedding_length"),
        n_vocab=len(values.get("tokenizer.ggml.tokens", [])),
        block=_block_in(path, values, tensors),
        tensors=tensors,
    )


def _require_axes(path: str, values: Mapping[str, Any]) -> None:
    """Of several axes by which positions turn, llama.cpp asserts that one does."""
    sections = np.atleast_1d(values.get(f"{_ARCHITECTURE}.rope.dimension_sections", 0))
    if sections.dtype.kind not in "iu" or sections.min(initial=0) < 0 or (sections.any() and not sections[0]):
        raise ValueError(
            f"{path} is a head whose rope.dimension_sections are {sections.tolist()!r:.60}: they must begin with time, "
            "the one axis of a text"
        )


def _block_in(path: str, values: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> Block:
    is_chained, chooses = "markov_w1.weight" in tensors, "selector_hidden.weight" in tensors
    if is_chained and chooses:
        raise ValueError(f"{path} is a head that is damaged: it has the chains of both DSpark and DFlash2")
    sizes = values if is_chained or chooses else {f"{_ARCHITECTURE}.block_size": _USUAL_SIZE, **values}
    size = number_in(path, sizes, f"{_ARCHITECTURE}.block_size")
    if size not in _SIZES:
        raise ValueError(
            f"{path} is a head whose {_ARCHITECTURE}.block_size is {size}: it must be from {_SIZES[0]} to {_SIZES[-1]}"
        )
    candidates = number_in(path, values, f"{_ARCHITECTURE}.selector_top_k") if chooses else 0
    num_tokens = len(values.get("tokenizer.ggml.tokens", []))
    if chooses and not 0 < candidates <= num_tokens:
        raise ValueError(
            f"{path} is a head whose {_ARCHITECTURE}.selector_top_k is {candidates}: it must be from 1 to "
            f"{num_tokens}, the tokens that there are"
        )
    begins_at_once = is_chained and _said(path, values, "sample_from_anchor", default=True)
    return Block(
        size=size,
        mask=number_in(path, values, "tokenizer.ggml.mask_token_id"),
        first=0 if begins_at_once else 1,
        is_causal=_said(path, values, "attention.causal", default=False),
        is_whole=is_chained or chooses,
        num_candidates=candidates,
    )


def _said(path: str, values: Mapping[str, Any], name: str, *, default: bool) -> bool:
    found = values.get(f"{_ARCHITECTURE}.{name}", default)
    if not isinstance(found, bool):
        raise ValueError(f"{path} is a head whose {_ARCHITECTURE}.{name} must be true or false, and is {found!r:.60}")
    return found
